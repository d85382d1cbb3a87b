//! The interface of an index, and the measurements that are the same for each.

use std::hint::black_box;
use std::time::Instant;

use crate::answers::{cpu_ns, percentile, resident_bytes, Answers, Usage};
use crate::corpus::{write_store, Corpus, Records};

pub trait Peer {
    /// Records in the types of the index.
    type Prepared<'a>;
    type Question<'a>;

    fn prepare(records: Records<'_>) -> Self::Prepared<'_>;

    /// Applies all records as fast as possible.  When it returns, every event is applied.
    fn replay(&mut self, prepared: Self::Prepared<'_>, answers: &mut Answers);

    /// Converts and applies the records one by one.  With `answers`, each query sees exactly the
    /// events before it; without, queries are skipped.
    fn fill(&mut self, records: Records<'_>, answers: Option<&mut Answers>);

    fn question(tokens: &[u64]) -> Self::Question<'_>;
    fn ask(&mut self, question: &Self::Question<'_>, answers: &mut Answers);

    /// How many events the index refused.
    fn refused(&self) -> u64;
}

pub struct Figure {
    pub name: String,
    pub value: f64,
    pub unit: &'static str,
    /// The kernel's share of the CPU time of the measurement, in percent.
    pub kernel_percent: Option<f64>,
}

fn figure(name: String, value: f64, unit: &'static str, began: Usage) -> Figure {
    Figure {
        name,
        value,
        unit,
        kernel_percent: began.kernel_percent_since(),
    }
}

fn tell_refused(peer: &impl Peer) {
    if peer.refused() > 0 {
        eprintln!("{} events were refused", peer.refused());
    }
}

/// Replays the corpus into new indexes until `seconds` are over.  Returns the rate of each replay.
pub fn throughput<P: Peer>(make: impl Fn() -> P, corpus: &Corpus, seconds: f64) -> Vec<Figure> {
    let name = format!("index.conversation.{}", corpus.workers);
    let began = Instant::now();
    let mut figures = Vec::new();

    while figures.is_empty() || began.elapsed().as_secs_f64() < seconds {
        let (mut peer, mut answers) = (make(), Answers::new(corpus.workers));
        let prepared = P::prepare(corpus.records());
        let usage = Usage::now();
        let start = Instant::now();
        peer.replay(prepared, &mut answers);
        let rate = corpus.block_operations as f64 / start.elapsed().as_secs_f64() / 1e6;
        eprintln!("{name}: {rate:.1} M/s");
        tell_refused(&peer);
        figures.push(figure(name.clone(), rate, "M block operations/s", usage));
    }
    figures
}

/// Replays the corpus so that each query sees exactly the events before it.  Returns the checksum
/// without its lowest 11 bits, as bench_index does, because a double has 53 bits.  Writes the sum of
/// each answer to the file.
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
        eprintln!("the sums of the answers cannot be written: {error}");
    }
    let name = format!("index.conversation.{}.checksum", corpus.workers);
    let checksum = (answers.checksum >> 11) as f64;
    vec![figure(name, checksum, "checksum", usage)]
}

/// The memory of an index after all events, and the time of each query then.
pub fn quiet<P: Peer>(make: impl Fn() -> P, corpus: &Corpus) -> Vec<Figure> {
    let mut answers = Answers::new(corpus.workers);
    let mut took_ns = vec![u64::MAX; corpus.queries().count()]; // written, so that `before` includes it
    let before = resident_bytes();
    let usage = Usage::now();
    let mut peer = make();

    peer.fill(corpus.records(), None);
    let bytes = resident_bytes().saturating_sub(before) as f64;
    for (tokens, took_ns) in corpus.queries().zip(&mut took_ns) {
        let question = P::question(tokens);
        black_box(tokens.iter().fold(0, |sum, token| sum ^ token)); // brings it into the cache, as a decoder would
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
            "index.bytes_per_membership.resident".into(),
            a_membership,
            "bytes",
            usage,
        ),
        figure("index.query.p50".into(), microseconds(500), "us", usage),
        figure("index.query.p99".into(), microseconds(990), "us", usage),
    ]
}

/// Spreads 64 bits over 64 bits, as bench_mix() of `../parts/bench.c`.
fn mix(mut value: u64) -> u64 {
    value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

const GROWTH_CHAIN: usize = 64;
const GROWTH_WORKERS: u32 = 128;
const GROWTH_MIN_RUNS: usize = 5;

/// Stores as grow() of `../index/bench_index.c` into an empty index.  `min_ns` is the CPU time of each
/// store in its fastest run.
fn grow<P: Peer>(mut peer: P, min_ns: &mut [u64]) {
    let (mut tokens, mut blocks) = ([0; GROWTH_CHAIN], [0; GROWTH_CHAIN]);
    let mut answers = Answers::new(GROWTH_WORKERS);
    let mut words = Vec::new();

    for (store, min_ns) in (0u32..).zip(min_ns) {
        let mut name = 0;
        for n in 0..GROWTH_CHAIN {
            tokens[n] = mix(mix(u64::from(store) + 1).wrapping_add(n as u64));
            name = mix(name ^ tokens[n]);
            blocks[n] = name;
        }
        write_store(&mut words, store % GROWTH_WORKERS, &blocks, &tokens);
        let prepared = P::prepare(Records::of(&words));
        let before_ns = cpu_ns();
        peer.replay(prepared, &mut answers);
        *min_ns = cpu_ns().saturating_sub(before_ns).min(*min_ns);
    }
    tell_refused(&peer);
}

/// The CPU time of the worst of so many stores.  Runs are repeated until `seconds` are over, and are
/// alike, because these indexes hash without a random key.
pub fn growth<P: Peer>(make: impl Fn(u32) -> P, stores: usize, seconds: f64) -> Vec<Figure> {
    let (began, usage) = (Instant::now(), Usage::now());
    let mut min_ns = vec![u64::MAX; stores];

    for run in 0.. {
        if run >= GROWTH_MIN_RUNS && began.elapsed().as_secs_f64() >= seconds {
            break;
        }
        grow(make(GROWTH_WORKERS), &mut min_ns);
    }
    let worst_ms = min_ns.iter().max().map_or(0.0, |&ns| ns as f64 / 1e6);
    vec![figure("index.growth.worst".into(), worst_ms, "ms", usage)]
}
