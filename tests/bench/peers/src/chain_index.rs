//! `kv_index::ShardedChainIndex`, used as the lanes of the crate's pool use it: a lane map for each
//! worker, events applied in order, lookups by `score_into`, which allocates nothing.  One shard is
//! a `ChainIndex`, which is limited to 1,024 workers.  A lane is a thread.  With two lanes, each
//! applies the events of half of the workers and answers every second query.

use kv_index::{ChainBlockMap, ContentHash, SequenceHash, ShardedChainIndex, StoredBlock};

use crate::answers::Answers;
use crate::corpus::{Record, Records};
use crate::peer::Peer;

const MOST_WORKERS: u32 = 1024; // of a shard
pub const AHEAD: usize = 2; // steps

/// Prefetches the data of a step, as `../index/bench_index.c` does for our index.
#[inline]
pub fn fetch<T>(items: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for line in items.chunks(64 / size_of::<T>()) {
        use core::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        // SAFETY: only prefetches memory of a slice.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
}

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

/// The steps, and their blocks one after the other, in the types of the crate.
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

    #[inline]
    fn fetch(&self, step: Option<&Step<'_>>) {
        match step {
            Some(Step::Query(tokens)) => fetch(tokens),
            Some(&Step::Store { begin, end, .. }) => fetch(&self.stored[begin..end]),
            Some(&Step::Remove { begin, end, .. }) => fetch(&self.removed[begin..end]),
            None => {}
        }
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

/// What the lanes share.
struct Shared {
    index: ShardedChainIndex,
    ids: Vec<u32>,
    workers_a_shard: u32,
}

/// What each lane has alone.
struct Lane {
    maps: Vec<ChainBlockMap>, // by worker; empty for workers of other lanes
    refused: u64,
}

pub struct Chain<const LANES: usize> {
    shared: Shared,
    lanes: [Lane; LANES],
}

impl<const LANES: usize> Chain<LANES> {
    pub fn new(workers: u32) -> Self {
        let shards = workers.div_ceil(MOST_WORKERS);
        let workers_a_shard = workers.div_ceil(shards);
        let index = ShardedChainIndex::new(shards as usize, workers_a_shard as usize);
        let id_of = |worker: u32| {
            let shard = (worker / workers_a_shard) as usize;
            let id = index.intern_worker_in(shard, &format!("worker-{worker}"));
            id.expect("the shard has room for it")
        };

        Chain {
            lanes: std::array::from_fn(|_| Lane {
                maps: (0..workers).map(|_| ChainBlockMap::new()).collect(),
                refused: 0,
            }),
            shared: Shared {
                ids: (0..workers).map(id_of).collect(),
                workers_a_shard,
                index,
            },
        }
    }

    fn lane_of(record: &Record<'_>, queries: usize) -> usize {
        match *record {
            Record::Query { .. } => queries % LANES,
            Record::Store { worker, .. } | Record::Remove { worker, .. } => worker as usize % LANES,
        }
    }
}

impl Shared {
    /// Workers got consecutive numbers, shard by shard.
    #[inline]
    fn worker_of(&self, id: u32) -> u32 {
        ShardedChainIndex::shard_of(id) as u32 * self.workers_a_shard
            + ShardedChainIndex::local_id(id)
    }

    fn apply(
        &self,
        lane: &mut Lane,
        prepared: &Prepared<'_>,
        step: &Step<'_>,
        answers: Option<&mut Answers>,
    ) {
        match *step {
            Step::Query(tokens) => {
                if let Some(answers) = answers {
                    self.ask(tokens, answers);
                }
            }
            Step::Store {
                worker,
                parent,
                begin,
                end,
            } => {
                let (id, map) = (self.ids[worker as usize], &mut lane.maps[worker as usize]);
                let blocks = &prepared.stored[begin..end];
                let result = self.index.apply_stored(id, blocks, parent, map);
                lane.refused += u64::from(result.is_err());
            }
            Step::Remove { worker, begin, end } => {
                let (id, map) = (self.ids[worker as usize], &mut lane.maps[worker as usize]);
                self.index
                    .apply_removed(id, &prepared.removed[begin..end], map);
            }
        }
    }

    fn replay(&self, lane: &mut Lane, prepared: &Prepared<'_>, answers: &mut Answers) {
        for (i, step) in prepared.steps.iter().enumerate() {
            prepared.fetch(prepared.steps.get(i + AHEAD));
            self.apply(lane, prepared, step, Some(answers));
        }
    }

    fn ask(&self, question: &[u64], answers: &mut Answers) {
        let hash_of = |&hash: &u64| hash;

        if self.index.shards() == 1 {
            let report = |worker, depth| answers.depth(worker, depth);
            self.index.score_into(question, hash_of, false, report);
        } else {
            let report = |id, depth| answers.depth(self.worker_of(id), depth);
            self.index.score_into(question, hash_of, false, report);
        }
        answers.end();
    }
}

impl<const LANES: usize> Peer for Chain<LANES> {
    type Prepared<'a> = [Prepared<'a>; LANES];
    type Question<'a> = &'a [u64];

    fn prepare(records: Records<'_>) -> [Prepared<'_>; LANES] {
        let mut prepared = std::array::from_fn(|_| Prepared::default());
        let mut queries = 0;

        for record in records {
            let lane = Self::lane_of(&record, queries);
            queries += usize::from(matches!(record, Record::Query { .. }));
            prepared[lane].add(record);
        }
        prepared
    }

    fn replay(&mut self, prepared: [Prepared<'_>; LANES], answers: &mut Answers) {
        let shared = &self.shared;

        if let ([lane], [prepared]) = (&mut self.lanes[..], &prepared[..]) {
            shared.replay(lane, prepared, answers);
            return;
        }
        std::thread::scope(|scope| {
            for (lane, prepared) in self.lanes.iter_mut().zip(&prepared) {
                scope.spawn(move || {
                    let mut answers = Answers::new(lane.maps.len() as u32);
                    shared.replay(lane, prepared, &mut answers);
                });
            }
        });
    }

    fn fill(&mut self, records: Records<'_>, mut answers: Option<&mut Answers>) {
        let mut prepared = Prepared::default();

        for record in records {
            let lane = &mut self.lanes[Self::lane_of(&record, 0)];
            prepared.clear();
            prepared.add(record);
            self.shared
                .apply(lane, &prepared, &prepared.steps[0], answers.as_deref_mut());
        }
    }

    fn question(tokens: &[u64]) -> &[u64] {
        tokens
    }

    fn ask(&mut self, question: &&[u64], answers: &mut Answers) {
        self.shared.ask(question, answers);
    }

    fn refused(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.refused).sum()
    }
}
