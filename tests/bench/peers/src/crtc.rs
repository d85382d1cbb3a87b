//! `ConcurrentRadixTreeCompressed` of dynamo-kv-router behind its `ThreadPoolIndexer`, which is the
//! only public way to apply an event: events go through a queue to the pool's threads, lookups run
//! on the calling thread, as in the crate's router.

use dynamo_kv_router::indexer::{SyncIndexer, ThreadPoolIndexer};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, RouterEvent,
};
use dynamo_kv_router::ConcurrentRadixTreeCompressed;
use tokio::runtime::Runtime;

use crate::answers::Answers;
use crate::corpus::{Record, Records};
use crate::peer::Peer;

const BLOCK_TOKENS: u32 = 16; // the pool requires it, but uses it only for queries by tokens
const MAX_QUEUED: u64 = 1024; // events, while memory is measured

/// An event owns its blocks.  It is made before the clock runs, and moved into the queue.
pub enum Step {
    Query(Vec<LocalBlockHash>),
    Event(RouterEvent),
}

fn stored(parent: Option<u64>, blocks: &[u64], tokens: &[u64]) -> KvCacheEventData {
    let pairs = blocks.iter().zip(tokens);
    let blocks = pairs.map(|(&block, &tokens)| KvCacheStoredBlockData {
        block_hash: ExternalSequenceBlockHash(block),
        tokens_hash: LocalBlockHash(tokens),
        mm_extra_info: None,
    });
    KvCacheEventData::Stored(KvCacheStoreData {
        parent_hash: parent.map(ExternalSequenceBlockHash),
        start_position: None,
        blocks: blocks.collect(),
    })
}

fn removed(blocks: &[u64]) -> KvCacheEventData {
    let block_hashes = blocks
        .iter()
        .map(|&block| ExternalSequenceBlockHash(block))
        .collect();
    KvCacheEventData::Removed(KvCacheRemoveData { block_hashes })
}

fn event(worker: u32, event_id: u64, data: KvCacheEventData) -> Step {
    Step::Event(RouterEvent::new(
        u64::from(worker),
        KvCacheEvent {
            event_id,
            data,
            dp_rank: 0,
        },
    ))
}

fn step_of(record: &Record<'_>, number: u64) -> Step {
    match *record {
        Record::Query { tokens } => Step::Query(Crtc::question(tokens)),
        Record::Store {
            worker,
            parent,
            blocks,
            tokens,
        } => event(worker, number, stored(parent, blocks, tokens)),
        Record::Remove { worker, blocks } => event(worker, number, removed(blocks)),
    }
}

pub struct Crtc {
    pool: ThreadPoolIndexer<ConcurrentRadixTreeCompressed>,
    runtime: Runtime,
    refused: u64,
}

impl Crtc {
    pub fn new(threads: usize) -> Crtc {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        Crtc {
            pool: ThreadPoolIndexer::new(
                ConcurrentRadixTreeCompressed::new(),
                threads,
                BLOCK_TOKENS,
            ),
            runtime: runtime.expect("a runtime"),
            refused: 0,
        }
    }

    fn give(&mut self, event: RouterEvent) {
        self.refused += u64::from(self.pool.enqueue_event(event).is_err());
    }

    /// Waits until all events so far are applied.
    fn drain(&mut self) {
        self.refused += u64::from(self.runtime.block_on(self.pool.flush_and_wait()).is_err());
    }
}

impl Peer for Crtc {
    type Prepared<'a> = Vec<Step>;
    type Question<'a> = Vec<LocalBlockHash>;

    fn prepare(records: Records<'_>) -> Vec<Step> {
        records
            .zip(1..)
            .map(|(record, number)| step_of(&record, number))
            .collect()
    }

    fn replay(&mut self, prepared: Vec<Step>, answers: &mut Answers) {
        for step in prepared {
            match step {
                Step::Query(question) => self.ask(&question, answers),
                Step::Event(event) => self.give(event),
            }
        }
        self.drain();
    }

    fn fill(&mut self, records: Records<'_>, mut answers: Option<&mut Answers>) {
        for (record, number) in records.zip(1..) {
            match (step_of(&record, number), answers.as_deref_mut()) {
                (Step::Event(event), _) => self.give(event),
                (Step::Query(question), Some(answers)) => {
                    self.drain();
                    self.ask(&question, answers);
                }
                (Step::Query(_), None) => {}
            }
            if number % MAX_QUEUED == 0 {
                self.drain();
            }
        }
        self.drain();
    }

    fn question(tokens: &[u64]) -> Vec<LocalBlockHash> {
        tokens.iter().map(|&hash| LocalBlockHash(hash)).collect()
    }

    fn ask(&mut self, question: &Vec<LocalBlockHash>, answers: &mut Answers) {
        let found = self.pool.backend().find_matches(question, false);

        for (worker, &depth) in &found.scores {
            answers.depth(worker.worker_id as u32, depth);
        }
        answers.end();
    }

    fn refused(&self) -> u64 {
        self.refused
    }
}
