//! What is measured of every index in the same way.

use std::hint::black_box;
use std::time::Instant;

use crate::answers::{percentile, resident_bytes, Answers, Usage};
use crate::corpus::{Corpus, Records};

pub trait Peer {
    /// Records in the index's own types.
    type Prepared<'a>;
    type Question<'a>;

    fn prepare(records: Records<'_>) -> Self::Prepared<'_>;

    /// As fast as it goes; when it returns, every event is applied.
    fn replay(&mut self, prepared: Self::Prepared<'_>, is_events_only: bool, answers: &mut Answers);

    /// The same step by step, nothing made beforehand: with answers, each query finds all events
    /// before it applied; without, no queries.
    fn fill(&mut self, records: Records<'_>, answers: Option<&mut Answers>);

    fn question(tokens: &[u64]) -> Self::Question<'_>;
    fn ask(&self, question: &Self::Question<'_>, answers: &mut Answers);

    /// Events that the index would not take.
    fn refused(&self) -> u64;

    /// All that it holds, as values, which the last call lets go: how many (worker, block) pairs
    /// those were, and the seconds until they were there.  None: it cannot.
    fn dump(&mut self) -> Option<(u64, f64)> {
        None
    }
}

pub struct Figure {
    pub name: String,
    pub value: f64,
    pub unit: &'static str,
    /// The kernel's share of the processor time while it was measured.
    pub kernel_percent: Option<f64>,
}

pub fn figure(name: String, value: f64, unit: &'static str, began: Usage) -> Figure {
    Figure {
        name,
        value,
        unit,
        kernel_percent: began.kernel_percent_since(),
    }
}

/// index.query.p99 of the fleet of 128, index.query.1000.p99 of others: as bench_index has it.
fn name_of(row: &str, workers: u32, rest: &str) -> String {
    match workers {
        128 => format!("index.{row}{rest}"),
        _ => format!("index.{row}.{workers}{rest}"),
    }
}

pub fn tell_refused(peer: &impl Peer) {
    if peer.refused() > 0 {
        eprintln!("{} events were refused", peer.refused());
    }
}

/// Again and again, each time into a new index, for as long as `seconds`; the rates of all.
pub fn throughput<P: Peer>(
    make: impl Fn() -> P,
    corpus: &Corpus,
    is_events_only: bool,
    seconds: f64,
) -> Vec<Figure> {
    let row = if is_events_only {
        "events"
    } else {
        "conversation"
    };
    let asked: u64 = corpus.queries().map(|tokens| tokens.len() as u64).sum();
    let blocks = corpus.block_operations - if is_events_only { asked } else { 0 };
    let began = Instant::now();
    let mut figures = Vec::new();

    while figures.is_empty() || began.elapsed().as_secs_f64() < seconds {
        let (mut peer, mut answers) = (make(), Answers::new(corpus.workers));
        let prepared = P::prepare(corpus.records());
        let usage = Usage::now();
        let start = Instant::now();
        peer.replay(prepared, is_events_only, &mut answers);
        let rate = blocks as f64 / start.elapsed().as_secs_f64() / 1e6;
        eprintln!("index.{row}.{}: {rate:.1} M/s", corpus.workers);
        tell_refused(&peer);
        figures.push(figure(
            format!("index.{row}.{}", corpus.workers),
            rate,
            "M block operations/s",
            usage,
        ));
    }
    figures
}

/// Every query sees the index as it was then: the checksum of bench_index, without its lowest
/// 11 bits, as a double holds 53.  Into the file: the sum of each answer.
pub fn answers<P: Peer>(mut peer: P, corpus: &Corpus, path: Option<&str>) -> Vec<Figure> {
    let mut answers = Answers::new(corpus.workers);
    let usage = Usage::now();

    answers.sums = Some(Vec::new());
    peer.fill(corpus.records(), Some(&mut answers));
    tell_refused(&peer);
    let bytes: Vec<u8> = answers
        .sums
        .iter()
        .flatten()
        .flat_map(|sum| sum.to_le_bytes())
        .collect();
    if let Some(Err(error)) = path.map(|path| std::fs::write(path, bytes)) {
        eprintln!("the answers could not be kept: {error}");
    }
    let name = format!("index.conversation.{}.checksum", corpus.workers);
    let checksum = (answers.checksum >> 11) as f64;
    vec![figure(name, checksum, "checksum", usage)]
}

/// ns for each (worker, block) of what all events left, again and again.
pub fn dump<P: Peer>(mut peer: P, corpus: &Corpus, seconds: f64) -> Vec<Figure> {
    let began = Instant::now();
    let mut figures = Vec::new();

    peer.fill(corpus.records(), None);
    tell_refused(&peer);
    while figures.is_empty() || began.elapsed().as_secs_f64() < seconds {
        let usage = Usage::now();
        let Some((blocks, took)) = peer.dump() else {
            break;
        };
        if blocks != corpus.memberships {
            eprintln!("the dump has {blocks} of {} blocks", corpus.memberships);
        }
        figures.push(figure(
            format!("index.dump.{}", corpus.workers),
            took * 1e9 / blocks.max(1) as f64,
            "ns/block",
            usage,
        ));
    }
    figures
}

/// What an index takes that was filled by all events, and how long each query takes then.
pub fn quiet<P: Peer>(make: impl Fn() -> P, corpus: &Corpus) -> Vec<Figure> {
    let mut answers = Answers::new(corpus.workers);
    let mut took_ns = vec![u64::MAX; corpus.queries().count()]; // resident before we count
    let before = resident_bytes();
    let usage = Usage::now();
    let mut peer = make();

    peer.fill(corpus.records(), None);
    let bytes = resident_bytes().saturating_sub(before) as f64;
    for (tokens, took_ns) in corpus.queries().zip(&mut took_ns) {
        let question = P::question(tokens);
        black_box(tokens.iter().fold(0, |sum, token| sum ^ token)); // into the cache, where a decoder leaves it
        let start = Instant::now();
        peer.ask(&question, &mut answers);
        *took_ns = start.elapsed().as_nanos() as u64;
    }
    took_ns.sort_unstable();
    let microseconds = |permille| percentile(&took_ns, permille) as f64 / 1e3;
    let a_membership = bytes / corpus.memberships.max(1) as f64;
    tell_refused(&peer);
    vec![
        figure(
            name_of("bytes_per_membership", corpus.workers, ".resident"),
            a_membership,
            "bytes",
            usage,
        ),
        figure(
            name_of("query", corpus.workers, ".p50"),
            microseconds(500),
            "us",
            usage,
        ),
        figure(
            name_of("query", corpus.workers, ".p99"),
            microseconds(990),
            "us",
            usage,
        ),
    ]
}
