//! A KV-cache manager of the request level as a node for kvspec, in Rust with its standard library alone.
//!
//!     rustc -O --edition 2021 -o node node/main.rs && kvspec run --impl exec:./node
//!
//! It has all that the request level knows: pages of any size, rows, a prefix store, chunked prefill, overlapped
//! launches, streaming sessions, speculative decoding, sliding windows and recurrent states.
//!
//!     main     reads operations and writes answers, a line each
//!     json     the little of JSON that is needed for it
//!     tokens   sequences of tokens, cut into whole pages and a rest
//!     pools    the free pages, window pages and state slots
//!     store    the prefix store
//!     manager  the part that an engine has: a method for each operation
//!
//! A *record* is the memory of one holder: a row, whose block table lists its pages, and three lengths in tokens that
//! cut the positions of the row into ranges:
//!
//!     [0, protected)           pages of the prefix store, locked by this holder
//!     [protected, committed)   its own pages, with K/V that counts
//!     [committed, allocated)   its own pages, with room for drafts

mod json;
mod manager;
mod pools;
mod store;
mod tokens;

use json::Json;
use manager::{Answer, Manager};
use std::io::{self, BufRead, Write};

/// All features are supported. Room is counted exactly, which an engine that is free to estimate it may do, too.
const HELLO: &str = concat!(
    r#"{"kvspec": 2, "name": "node.rs", "version": "2", "unsupported": [], "reset": true, "policies": {"#,
    r#""rows_read": ["until_complete", "at_launch", "in_order"], "first_turn_chunks": ["private", "published"], "#,
    r#""turns_count_as": ["requests", "sessions"], "overshoot": ["freed", "published"], "#,
    r#""room": ["exact", "estimated"]}}"#,
);

fn main() -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{HELLO}")?;
    output.flush()?;
    let mut manager = None;
    for line in io::stdin().lock().lines() {
        let read = Json::read(&line?);
        if read.get("op") == &Json::Null {
            manager = Some(Manager::new(read.get("config")));
            continue;
        }
        let answer = manager.as_mut().expect("a header comes first").carry_out(&read);
        let mut line = String::new();
        reply(read.get("op"), answer).write(&mut line);
        line.push('\n');
        output.write_all(line.as_bytes())?;
        output.flush()?;
    }
    Ok(())
}

fn reply(op: &Json, answer: Answer) -> Json {
    let object = |parts: Vec<(&str, Json)>| {
        Json::Object(parts.into_iter().map(|(name, part)| (name.to_string(), part)).collect())
    };
    let (outcome, parts) = match answer {
        Ok(parts) => ("obs", parts),
        Err(refusal) => {
            let mut parts = vec![("rule", Json::Text(refusal.rule.into())), ("reason", Json::Text(refusal.reason))];
            parts.extend(refusal.short.into_iter().map(|(name, missing)| (name, missing.into())));
            ("refused", parts)
        }
    };
    object(vec![("op", op.clone()), (outcome, object(parts))])
}
