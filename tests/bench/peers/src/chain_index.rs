//! `kv_index::ChainIndex`, driven by one thread as a lane of its own pool drives it: a lane map
//! for each worker, events applied as they come, lookups by `score_into`, which allocates
//! nothing.

use kv_index::{ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock};

use crate::answers::Answers;
use crate::corpus::{Corpus, Record};
use crate::peer::Peer;

enum Step<'a> {
    Query(&'a [u64]),
    Store {
        worker: u32,
        parent: Option<SequenceHash>,
        begin: usize,
        end: usize,
    },
    Remove {
        worker: u32,
        begin: usize,
        end: usize,
    },
}

/// Blocks of all steps one after the other, in the types of the crate.
#[derive(Default)]
pub struct Prepared<'a> {
    steps: Vec<Step<'a>>,
    stored: Vec<StoredBlock>,
    removed: Vec<SequenceHash>,
}

impl<'a> Prepared<'a> {
    fn clear(&mut self) {
        self.steps.clear();
        self.stored.clear();
        self.removed.clear();
    }

    fn add(&mut self, record: Record<'a>) {
        let (stored, removed) = (self.stored.len(), self.removed.len());

        self.steps.push(match record {
            Record::Query { tokens } => Step::Query(tokens),
            Record::Store {
                worker,
                parent,
                blocks,
                tokens,
            } => {
                self.stored
                    .extend(
                        blocks
                            .iter()
                            .zip(tokens)
                            .map(|(&block, &tokens)| StoredBlock {
                                seq_hash: SequenceHash(block),
                                content_hash: ContentHash(tokens),
                            }),
                    );
                let parent = parent.map(SequenceHash);
                Step::Store {
                    worker,
                    parent,
                    begin: stored,
                    end: self.stored.len(),
                }
            }
            Record::Remove { worker, blocks } => {
                self.removed
                    .extend(blocks.iter().map(|&block| SequenceHash(block)));
                Step::Remove {
                    worker,
                    begin: removed,
                    end: self.removed.len(),
                }
            }
        });
    }
}

pub struct Chain {
    index: ChainIndex,
    maps: Vec<ChainBlockMap>,
    refused: u64,
}

impl Chain {
    pub fn new(workers: u32) -> Chain {
        let index = ChainIndex::with_max_workers(workers as usize);

        for worker in 0..workers {
            let id = index.intern_worker(&format!("worker-{worker}"));
            assert_eq!(id.ok(), Some(worker), "workers are numbered as they come");
        }
        let maps = (0..workers).map(|_| ChainBlockMap::new()).collect();
        Chain {
            index,
            maps,
            refused: 0,
        }
    }

    fn apply(&mut self, prepared: &Prepared<'_>, step: &Step<'_>, answers: Option<&mut Answers>) {
        match *step {
            Step::Query(tokens) => {
                if let Some(answers) = answers {
                    self.ask(&tokens, answers);
                }
            }
            Step::Store {
                worker,
                parent,
                begin,
                end,
            } => {
                let map = &mut self.maps[worker as usize];
                let result =
                    self.index
                        .apply_stored(worker, &prepared.stored[begin..end], parent, map);
                self.refused += u64::from(result.is_err());
            }
            Step::Remove { worker, begin, end } => {
                let map = &mut self.maps[worker as usize];
                self.index
                    .apply_removed(worker, &prepared.removed[begin..end], map);
            }
        }
    }
}

impl Peer for Chain {
    type Prepared<'a> = Prepared<'a>;
    type Question<'a> = &'a [u64];

    fn prepare(corpus: &Corpus) -> Prepared<'_> {
        let mut prepared = Prepared::default();

        for record in corpus.records() {
            prepared.add(record);
        }
        prepared
    }

    fn replay(&mut self, prepared: Prepared<'_>, is_events_only: bool, answers: &mut Answers) {
        for step in &prepared.steps {
            self.apply(&prepared, step, (!is_events_only).then_some(&mut *answers));
        }
    }

    fn fill(&mut self, corpus: &Corpus, mut answers: Option<&mut Answers>) {
        let mut prepared = Prepared::default();

        for record in corpus.records() {
            prepared.clear();
            prepared.add(record);
            self.apply(&prepared, &prepared.steps[0], answers.as_deref_mut());
        }
    }

    fn question(tokens: &[u64]) -> &[u64] {
        tokens
    }

    fn ask(&self, question: &&[u64], answers: &mut Answers) {
        self.index.score_into(
            question,
            |&hash| hash,
            false,
            |worker, depth| answers.depth(worker, depth),
        );
        answers.end();
    }

    fn refused(&self) -> u64 {
        self.refused
    }
}
