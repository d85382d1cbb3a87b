//! A corpus of the bench in memory; `../parts/corpus.h` has its layout.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};

const MAGIC: u64 = u64::from_le_bytes(*b"KVBCORP1");
const HEADER_WORDS: usize = 8;
const RECORD_WORDS: usize = 3;
const PARENT_FLAG: u64 = 1 << 8;
const STORE: u64 = 1;

pub struct Corpus {
    pub workers: u32,
    pub block_operations: u64,
    /// (Worker, block) pairs held at its end, if no worker stores a block twice.
    pub memberships: u64,
    words: Vec<u64>,
}

pub enum Record<'a> {
    Query {
        tokens: &'a [u64],
    },
    Store {
        worker: u32,
        parent: Option<u64>,
        blocks: &'a [u64],
        tokens: &'a [u64],
    },
    Remove {
        worker: u32,
        blocks: &'a [u64],
    },
}

impl Record<'_> {
    /// How many block operations it counts as.
    pub fn blocks(&self) -> usize {
        match self {
            Record::Query { tokens } => tokens.len(),
            Record::Store { blocks, .. } | Record::Remove { blocks, .. } => blocks.len(),
        }
    }
}

/// Consecutive records of a corpus.
pub struct Records<'a> {
    left: &'a [u64],
}

/// Writes the words of a store without a parent.
pub fn write_store(words: &mut Vec<u64>, worker: u32, blocks: &[u64], tokens: &[u64]) {
    words.clear();
    words.extend([u64::from(worker) << 32 | STORE, blocks.len() as u64, 0]);
    words.extend_from_slice(blocks);
    words.extend_from_slice(tokens);
}

impl<'a> Records<'a> {
    pub fn of(words: &'a [u64]) -> Records<'a> {
        Records { left: words }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    /// Also None if the remaining words are not a complete record.
    fn next(&mut self) -> Option<Record<'a>> {
        let (head, rest) = self.left.split_at_checked(RECORD_WORDS)?;
        let count = usize::try_from(head[1]).ok()?;
        let (hashes, rest) = rest.split_at_checked(count)?;
        let worker = (head[0] >> 32) as u32;
        let (record, rest) = match head[0] & 3 {
            0 => (Record::Query { tokens: hashes }, rest),
            STORE => {
                let (tokens, rest) = rest.split_at_checked(count)?;
                let parent = (head[0] & PARENT_FLAG != 0).then_some(head[2]);
                (
                    Record::Store {
                        worker,
                        parent,
                        blocks: hashes,
                        tokens,
                    },
                    rest,
                )
            }
            2 => (
                Record::Remove {
                    worker,
                    blocks: hashes,
                },
                rest,
            ),
            _ => return None,
        };
        self.left = rest;
        Some(record)
    }
}

fn not_a_corpus(path: &str) -> Error {
    Error::new(
        ErrorKind::InvalidData,
        format!("{path}: not a complete corpus"),
    )
}

fn read_words(path: &str) -> Result<Vec<u64>> {
    let mut file = File::open(path)?;
    let bytes = usize::try_from(file.metadata()?.len()).map_err(|_| not_a_corpus(path))?;
    let mut words = Vec::with_capacity(bytes / 8);
    let mut piece = vec![0u8; 1 << 20];
    let mut left = bytes;

    if bytes % 8 != 0 || bytes < HEADER_WORDS * 8 {
        return Err(not_a_corpus(path));
    }
    while left > 0 {
        let now = left.min(piece.len());
        file.read_exact(&mut piece[..now])?;
        words.extend(piece[..now].chunks_exact(8).map(|word| {
            let mut bytes = [0u8; 8];
            bytes.copy_from_slice(word);
            u64::from_le_bytes(bytes)
        }));
        left -= now;
    }
    Ok(words)
}

/// Updates the number of blocks held by each worker; None if the worker does not exist.
fn count_held(held: &mut [u64], record: &Record<'_>) -> Option<()> {
    match *record {
        Record::Query { .. } => {}
        Record::Store { worker, blocks, .. } => {
            *held.get_mut(worker as usize)? += blocks.len() as u64
        }
        Record::Remove { worker, blocks } => *held.get_mut(worker as usize)? -= blocks.len() as u64,
    }
    Some(())
}

impl Corpus {
    /// Reads the file and checks all records.
    pub fn load(path: &str) -> Result<Corpus> {
        let words = read_words(path)?;
        let mut corpus = Corpus {
            workers: words[1] as u32,
            block_operations: words[3],
            memberships: 0,
            words,
        };
        let mut records = corpus.records();
        let mut held = vec![0u64; corpus.workers as usize];
        let (mut count, mut blocks) = (0u64, 0u64);
        for record in records.by_ref() {
            count += 1;
            blocks += record.blocks() as u64;
            count_held(&mut held, &record).ok_or_else(|| not_a_corpus(path))?;
        }
        let is_whole = records.left.is_empty();
        if corpus.words[0] != MAGIC
            || !is_whole
            || count != corpus.words[2]
            || blocks != corpus.words[3]
        {
            return Err(not_a_corpus(path));
        }
        corpus.memberships = held.iter().sum();
        Ok(corpus)
    }

    pub fn records(&self) -> Records<'_> {
        Records::of(&self.words[HEADER_WORDS..])
    }

    pub fn queries(&self) -> impl Iterator<Item = &[u64]> {
        self.records().filter_map(|record| match record {
            Record::Query { tokens } => Some(tokens),
            _ => None,
        })
    }
}
