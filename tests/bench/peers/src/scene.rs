//! Measurements on a scene (`../corpus/bench_scenes.c`), in the same way as `../index/rows_scene.c`.

use std::time::Instant;

use crate::answers::{cpu_ns, percentile, Answers, Usage};
use crate::corpus::{Corpus, Record, Records};
use crate::peer::{figure, tell_refused, Figure, Peer};

const MOST_QUERIES: usize = 1 << 16;

/// For a run of records: the names of its figures, the number of items by which its time is divided,
/// the unit, and how many units a second has.  None for queries.
fn about(run: &Records<'_>) -> Option<(&'static [&'static str], usize, &'static str, f64)> {
    let blocks: usize = run.clone().map(|record| record.blocks()).sum();

    match run.clone().next()? {
        Record::Query { .. } => None,
        Record::Store { .. } => Some((&["store"], blocks, "ns/block", 1e9)),
        Record::Remove { .. } => Some((&["remove"], blocks, "ns/block", 1e9)),
        // These indexes clear at once, so both figures are the same.
        Record::Clear { .. } => Some((
            &["clear.at_once", "clear.all"],
            run.clone().count(),
            "us",
            1e6,
        )),
    }
}

/// Fills the index with the first run, then measures the other runs in turn, each until all its
/// events are applied, until `seconds` are over.
pub fn rounds<P: Peer>(mut peer: P, corpus: &Corpus, seconds: f64) -> Vec<Figure> {
    let runs = corpus.records().runs();
    let mut answers = Answers::new(corpus.workers);
    let mut figures = Vec::new();

    peer.fill(runs[0].clone(), None);
    let began = Instant::now();
    while figures.is_empty() || began.elapsed().as_secs_f64() < seconds {
        for run in &runs[1..] {
            let prepared = P::prepare(run.clone());
            let usage = Usage::now();
            let start = Instant::now();
            peer.replay(prepared, false, &mut answers);
            let took = start.elapsed().as_secs_f64();
            let Some((names, count, unit, a_second)) = about(run) else {
                continue;
            };
            for name in names {
                let value = took * a_second / count as f64;
                let name = format!("scene.rounds.{name}");
                figures.push(figure(name, value, unit, usage));
            }
        }
    }
    tell_refused(&peer);
    figures
}

/// Measures each query of the corpus after all events are applied.
pub fn queries<P: Peer>(mut peer: P, corpus: &Corpus, seconds: f64) -> Vec<Figure> {
    let questions: Vec<_> = corpus.queries().map(P::question).collect();
    let mut answers = Answers::new(corpus.workers);
    let mut took_ns = Vec::with_capacity(MOST_QUERIES);

    peer.fill(corpus.records(), None);
    let usage = Usage::now();
    let began = Instant::now();
    for question in questions.iter().cycle().take(MOST_QUERIES) {
        let start = Instant::now();
        peer.ask(question, &mut answers);
        took_ns.push(start.elapsed().as_nanos() as u64);
        if began.elapsed().as_secs_f64() >= seconds {
            break;
        }
    }
    took_ns.sort_unstable();
    tell_refused(&peer);
    [(500, "p50"), (990, "p99")]
        .map(|(permille, name)| {
            let value = percentile(&took_ns, permille) as f64 / 1e3;
            figure(format!("scene.queries.{name}"), value, "us", usage)
        })
        .into()
}

/// The CPU time of all threads, in ms, until the most expensive store was applied.
fn worst_store<P: Peer>(mut peer: P, corpus: &Corpus) -> f64 {
    let stores = corpus.records().runs().swap_remove(0);
    let mut answers = Answers::new(corpus.workers);
    let mut worst_ns = 0;

    for store in stores.singly() {
        let prepared = P::prepare(store);
        let before = cpu_ns();
        peer.replay(prepared, true, &mut answers);
        worst_ns = worst_ns.max(cpu_ns() - before);
    }
    tell_refused(&peer);
    worst_ns as f64 / 1e6
}

/// Repeats worst_store() with new indexes and returns the least result: work of the index itself
/// occurs in every repetition, noise of the machine does not.
pub fn growth<P: Peer>(make: impl Fn() -> P, corpus: &Corpus, seconds: f64) -> Vec<Figure> {
    let (began, usage) = (Instant::now(), Usage::now());
    let mut least = worst_store(make(), corpus);

    while began.elapsed().as_secs_f64() < seconds {
        least = least.min(worst_store(make(), corpus));
    }
    vec![figure("scene.growth.worst".into(), least, "ms", usage)]
}
