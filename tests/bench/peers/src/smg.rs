//! `RadixTree` of smg-radix-tree, by one thread, as its index service uses it: events applied in
//! order, lookups into memory that is reused.

use radix_tree::{Config, HolderId, Overlap, OverlapScratch, RadixTree};

use crate::answers::Answers;
use crate::chain_index::{fetch, AHEAD};
use crate::corpus::{Record, Records};
use crate::peer::Peer;

enum Step<'a> {
    Query(&'a [u64]),
    Store {
        worker: u32,
        parent: Option<u64>,
        begin: usize,
        end: usize,
    },
    Remove {
        worker: u32,
        blocks: &'a [u64],
    },
}

/// The steps, and the stored blocks one after the other, as pairs of key and content.
#[derive(Default)]
pub struct Prepared<'a> {
    steps: Vec<Step<'a>>,
    stored: Vec<(u64, u64)>,
}

impl<'a> Prepared<'a> {
    fn clear(&mut self) {
        self.steps.clear();
        self.stored.clear();
    }

    #[inline]
    fn fetch(&self, step: Option<&Step<'_>>) {
        match step {
            Some(Step::Query(tokens)) => fetch(tokens),
            Some(&Step::Store { begin, end, .. }) => fetch(&self.stored[begin..end]),
            Some(Step::Remove { blocks, .. }) => fetch(blocks),
            None => {}
        }
    }

    fn add(&mut self, record: Record<'a>) {
        let begin = self.stored.len();

        self.steps.push(match record {
            Record::Query { tokens } => Step::Query(tokens),
            Record::Store {
                worker,
                parent,
                blocks,
                tokens,
            } => {
                let pairs = blocks.iter().copied().zip(tokens.iter().copied());
                self.stored.extend(pairs);
                Step::Store {
                    worker,
                    parent,
                    begin,
                    end: self.stored.len(),
                }
            }
            Record::Remove { worker, blocks } => Step::Remove { worker, blocks },
        });
    }
}

pub struct Radix {
    tree: RadixTree,
    holders: Vec<HolderId>, // by worker; new trees number holders from 0 on
    scratch: OverlapScratch,
    found: Vec<Overlap>,
    refused: u64,
}

impl Radix {
    pub fn new(workers: u32) -> Radix {
        let mut tree = RadixTree::new(Config::default());
        let holders: Vec<HolderId> = (0..workers)
            .map(|worker| tree.create_holder(&format!("worker-{worker}")))
            .collect();

        Radix {
            tree,
            holders,
            scratch: OverlapScratch::default(),
            found: Vec::new(),
            refused: 0,
        }
    }

    fn apply(&mut self, step: &Step<'_>, stored: &[(u64, u64)], answers: Option<&mut Answers>) {
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
                let holder = self.holders[worker as usize];
                let result = self.tree.store(holder, parent, &stored[begin..end]);
                self.refused += u64::from(result.is_err());
            }
            Step::Remove { worker, blocks } => {
                self.tree.remove(self.holders[worker as usize], blocks);
            }
        }
    }
}

impl Peer for Radix {
    type Prepared<'a> = Prepared<'a>;
    type Question<'a> = &'a [u64];

    fn prepare(records: Records<'_>) -> Prepared<'_> {
        let mut prepared = Prepared::default();

        records.for_each(|record| prepared.add(record));
        prepared
    }

    fn replay(&mut self, prepared: Prepared<'_>, answers: &mut Answers) {
        for (i, step) in prepared.steps.iter().enumerate() {
            prepared.fetch(prepared.steps.get(i + AHEAD));
            self.apply(step, &prepared.stored, Some(&mut *answers));
        }
    }

    fn fill(&mut self, records: Records<'_>, mut answers: Option<&mut Answers>) {
        let mut prepared = Prepared::default();

        for record in records {
            prepared.clear();
            prepared.add(record);
            self.apply(
                &prepared.steps[0],
                &prepared.stored,
                answers.as_deref_mut(),
            );
        }
    }

    fn question(tokens: &[u64]) -> &[u64] {
        tokens
    }

    fn ask(&mut self, question: &&[u64], answers: &mut Answers) {
        self.tree
            .overlap(question, &mut self.scratch, &mut self.found);
        for overlap in &self.found {
            answers.depth(overlap.holder.parts().0, overlap.depth);
        }
        answers.end();
    }

    fn refused(&self) -> u64 {
        self.refused
    }
}
