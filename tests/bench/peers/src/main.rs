//! bench_peers PEER CORPUS WHAT [SECONDS]: replays a corpus of the bench through another index
//! and prints figures in the format of the bench's other programs.  bench_peers PEER growth STORES
//! [SECONDS] needs no corpus.  ../README.md describes how each index is used and what is measured.

mod answers;
mod chain_index;
mod corpus;
mod crtc;
mod peer;
mod smg;

use std::process::ExitCode;

use chain_index::Chain;
use corpus::Corpus;
use crtc::Crtc;
use peer::{Figure, Peer};
use smg::Radix;

const USAGE: &str = "bench_peers chainindex|two_chainindex|crtc|radixtree CORPUS \
    conversation|quiet [SECONDS]\n\
    bench_peers PEER CORPUS answers [FILE]\n\
    bench_peers chainindex|radixtree growth STORES [SECONDS]";

/// Of a row; without one, what is measured is measured once.
fn seconds_of(word: Option<&str>) -> Option<f64> {
    word.map_or(Some(0.0), |word| word.parse().ok())
}

fn measure<P: Peer>(
    make: impl Fn() -> P,
    corpus: &Corpus,
    what: &str,
    rest: Option<&str>,
) -> Option<Vec<Figure>> {
    if what == "answers" {
        return Some(peer::answers(make(), corpus, rest));
    }
    let seconds = seconds_of(rest)?;
    match what {
        "conversation" => Some(peer::throughput(make, corpus, seconds)),
        "quiet" => Some(peer::quiet(make, corpus)),
        _ => None,
    }
}

/// Only the indexes of one thread: its CPU time is all that a store takes.
fn grow(name: &str, stores: &str, rest: Option<&str>) -> Option<Vec<Figure>> {
    let (stores, seconds) = (stores.parse().ok()?, seconds_of(rest)?);
    match name {
        "chainindex" => Some(peer::growth(Chain::<1>::new, stores, seconds)),
        "radixtree" => Some(peer::growth(Radix::new, stores, seconds)),
        _ => None,
    }
}

/// One for each core, at most 4.
fn event_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(4))
}

fn figures(words: &[String]) -> Result<Vec<Figure>, String> {
    let [name, path, what, rest @ ..] = words else {
        return Err(USAGE.into());
    };
    let rest = rest.first().map(String::as_str);
    if path == "growth" {
        return grow(name, what, rest).ok_or_else(|| USAGE.into());
    }
    let corpus = Corpus::load(path).map_err(|error| format!("{path}: {error}"))?;
    let measured = match name.as_str() {
        "chainindex" => measure(|| Chain::<1>::new(corpus.workers), &corpus, what, rest),
        "two_chainindex" => measure(|| Chain::<2>::new(corpus.workers), &corpus, what, rest),
        "radixtree" => measure(|| Radix::new(corpus.workers), &corpus, what, rest),
        "crtc" => measure(|| Crtc::new(event_threads()), &corpus, what, rest),
        _ => None,
    };
    measured.ok_or_else(|| USAGE.into())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();

    match figures(&words) {
        Ok(figures) => {
            for Figure {
                name,
                value,
                unit,
                kernel_percent,
            } in figures
            {
                let kernel = kernel_percent
                    .map(|percent| format!(r#","kernel_percent":{percent:.1}"#))
                    .unwrap_or_default();
                println!(
                    r#"{{"name":"{name}","value":{value},"unit":"{unit}","against":null,"against_value":null,"ratio":null{kernel}}}"#
                );
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench_peers: {error}");
            ExitCode::FAILURE
        }
    }
}
