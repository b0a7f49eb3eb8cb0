"""Mistakes in the Rust node of the examples, of the kind that the author of one makes.

`tests/mutation/node.py` compiles each and looks what finds it.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    """A text in a module that is replaced; it occurs there once."""

    module: str
    """Path below `conformance/examples/node`."""
    old: str
    new: str
    mistake: str
    """It in a sentence."""


MUTANTS = [
    # Sequences and the store
    Mutant(
        "tokens.rs",
        "following.starts_with(&history.rest)",
        "following.iter().zip(&history.rest).all(|(one, other)| one == other)",
        "Sequences are compared with zip, which ends with the shorter one.",
    ),
    Mutant(
        "tokens.rs",
        "return history.rest.is_empty()",
        "return true",
        "A page key is taken to go on from anything.",
    ),
    Mutant(
        "tokens.rs",
        "tokens.push(number.int())",
        "tokens.push(number.int() as i32 as i64)",
        "Token ids are cast to 32 bits, so different ones become the same.",
    ),
    Mutant(
        "store.rs",
        "let node = self.next;",
        "let node = self.nodes.len() + 1;",
        "The number of nodes numbers the next one, also after some were removed.",
    ),
    Mutant(
        "store.rs",
        "change(&mut cached.locks);",
        "change(&mut cached.locks);\n            if cached.locks == 0 {\n                break;\n            }",
        "The walk up the tree ends at the first node that is unlocked.",
    ),
    Mutant(
        "store.rs",
        "live >= self.reach.min(path.len())",
        "live >= self.reach",
        "A prefix that is shorter than the window is never usable.",
    ),
    # Pools
    Mutant(
        "pools.rs",
        "        if !self.sides.contains_key(&page) {\n"
        "            if let Some(side) = self.sides.remove(&duplicate) {\n"
        "                self.sides.insert(page, side);\n"
        "            }\n"
        "        }\n",
        "        if let Some(side) = self.sides.remove(&duplicate) {\n"
        "            self.sides.insert(page, side);\n"
        "        }\n",
        "insert drops the window side that the store's page had.",
    ),
    # Requests and sessions that wait
    Mutant(
        "manager.rs",
        'op.get("session").text_or_none()',
        "Some(session).filter(|name| !name.is_empty())",
        "An empty name is taken for none.",
    ),
    Mutant(
        "manager/waiting.rs",
        "range(record.protected..=target)",
        "range(record.protected..target)",
        "The range of borders where a turn can resume leaves out its end.",
    ),
    # Prefill
    Mutant(
        "manager/prefill.rs",
        "request.prefix_len.take()",
        "request.prefix_len",
        "The match is copied and not taken: it is still there after the run.",
    ),
    Mutant(
        "manager/prefill.rs",
        "request.state.take().into_iter()",
        "request.state.into_iter()",
        "The early state slot is copied and not taken: request and record have it.",
    ),
    Mutant(
        "manager/prefill.rs",
        "self.tables[row] = path.iter().map(|node| self.store.nodes[node].page).collect();",
        "self.tables[row].extend(path.iter().map(|node| self.store.nodes[node].page));",
        "A block table is extended, and what its last holder left is in front.",
    ),
    # Running
    Mutant(
        "manager.rs",
        "reqs.iter().collect::<BTreeSet<_>>().len() < reqs.len()",
        "reqs.windows(2).any(|pair| pair[0] == pair[1])",
        "Only neighbours are compared to see whether a request is in a batch twice.",
    ),
    Mutant(
        "manager/running.rs",
        "tokens.len() != flight.sampled.len() || !flight.sampled.iter().all(named)",
        "!flight.sampled.iter().all(named)",
        "Tokens for requests that the launch did not sample are appended, too.",
    ),
    Mutant(
        "manager/running.rs",
        "std::mem::take(&mut run.prepared)",
        "run.prepared",
        "The prepared batch is copied and not taken: it can be launched again.",
    ),
    Mutant(
        "manager/running.rs",
        "run.unverified.pop_front();",
        "run.unverified.pop_back();",
        "A verify removes the newest speculative step, not the oldest one.",
    ),
    Mutant(
        "manager/prefill.rs",
        "read > prefix_len",
        "read >= prefix_len",
        "A launch that reads up to where an extend begins is taken to read what it writes.",
    ),
    # Publication
    Mutant(
        "manager/release.rs",
        "self.unknown_token += 1;",
        "",
        "All tokens past a stop are the same, so pages of them are duplicates.",
    ),
    # Lines
    Mutant(
        "json.rs",
        """'"' | '\\\\' => out.extend(['\\\\', c]),""",
        """'\\\\' => out.extend(['\\\\', c]),""",
        "Quotation marks in names are written as they are.",
    ),
    Mutant(
        "main.rs",
        """manager = Some(Manager::new(read.get("config")));""",
        """manager.get_or_insert_with(|| Manager::new(read.get("config")));""",
        "A further header does not begin anew.",
    ),
]
