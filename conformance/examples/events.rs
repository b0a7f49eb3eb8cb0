//! The life of a request as memory events, in Rust: `rustc events.rs && ./events | kvspec check -`
fn main() {
    let (holder, pages) = (r#""holder":"request 7","pool":"kv""#, [1, 2]);
    let used = r#"[{"table":"request 7","stop":6}]"#;
    println!(r#"{{"kvspec":2,"level":"memory","producer":"events.rs 1","pools":{{"kv":{{"page_size":4,"num_pages":64}}}}}}"#);
    println!(r#"{{"op":"take",{holder},"pages":{pages:?}}}"#);
    println!(r#"{{"op":"map","table":"request 7",{holder},"pages":{pages:?},"labels":["5f2e","91c0"]}}"#);
    println!(r#"{{"op":"begin","id":1,"stream":"compute","writes":{used},"reads":{used}}}"#);
    println!(r#"{{"op":"end","id":1}}"#);
    println!(r#"{{"op":"unmap","table":"request 7"}}"#);
    println!(r#"{{"op":"release",{holder},"pages":{pages:?}}}"#);
    println!(r#"{{"op":"end_holder","holder":"request 7"}}"#);
    println!(r#"{{"op":"idle"}}"#);
}
