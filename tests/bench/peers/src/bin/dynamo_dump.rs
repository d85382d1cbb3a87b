//! Reads a dump from standard input, as Dynamo's stand-alone indexer reads the dump of a peer
//! that it recovers from, and prints what it understood: a line for each block,
//! "key block_size worker_id dp_rank tier domain block_hash tokens_hash parent_hash".

use std::collections::BTreeMap;
use std::io;

use dynamo_kv_router::protocols::{KvCacheEventData, RouterEvent};
use serde::Deserialize;

/// What a peer's dump holds for each model and routing group.  That indexer's own type for it is
/// private; the events are its public ones.
#[derive(Deserialize)]
struct Entry {
    block_size: u32,
    events: Vec<RouterEvent>,
}

fn print_blocks(key: &str, block_size: u32, event: &RouterEvent) -> Result<(), String> {
    let KvCacheEventData::Stored(stored) = &event.event.data else {
        return Err(format!("not a stored event: {:?}", event.event.data));
    };
    // Whether it may be applied at all: a domain that it does not know would be refused.
    let domain = event.resolved_residency_domain().map_err(|e| e.to_string())?;
    let parent = stored.parent_hash.map_or("-".to_string(), |hash| hash.0.to_string());
    for block in &stored.blocks {
        println!(
            "{key} {block_size} {} {} {:?} {domain:?} {} {} {parent}",
            event.worker_id, event.event.dp_rank, event.storage_tier, block.block_hash.0, block.tokens_hash.0
        );
    }
    Ok(())
}

fn main() -> Result<(), String> {
    let dump: BTreeMap<String, Entry> =
        serde_json::from_reader(io::stdin().lock()).map_err(|e| e.to_string())?;
    for (key, entry) in &dump {
        key.split_once(':').ok_or(format!("{key}: no routing group"))?;
        for event in &entry.events {
            print_blocks(key, entry.block_size, event)?;
        }
    }
    Ok(())
}
