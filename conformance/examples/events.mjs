// The life of a request as memory events, in JavaScript:  node events.mjs | kvspec check -
const write = (event) => console.log(JSON.stringify(event));
const holder = "request 7", pool = "kv", pages = [1, 2];

write({ kvspec: 2, level: "memory", producer: "events.mjs 1", pools: { kv: { page_size: 4, num_pages: 64 } } });
write({ op: "take", holder, pool, pages });
write({ op: "map", table: holder, holder, pool, pages, labels: ["5f2e", "91c0"] });
write({ op: "begin", id: 1, stream: "compute", writes: [{ table: holder, stop: 6 }], reads: [{ table: holder, stop: 6 }] });
write({ op: "end", id: 1 });
write({ op: "unmap", table: holder });
write({ op: "release", holder, pool, pages });
write({ op: "end_holder", holder });
write({ op: "idle" });
