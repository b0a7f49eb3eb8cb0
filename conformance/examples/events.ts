// The life of a request as memory events, in TypeScript:  node events.ts | kvspec check -
type Pages = number[];
type Use = { table: string; start?: number; stop?: number };
type Event =
  | { op: "take" | "release"; holder: string; pool: string; pages: Pages }
  | { op: "map"; table: string; holder: string; pool: string; pages: Pages; labels: string[] }
  | { op: "begin"; id: number; stream: string; writes: Use[]; reads: Use[] }
  | { op: "end"; id: number }
  | { op: "unmap"; table: string }
  | { op: "end_holder"; holder: string }
  | { op: "idle" };

const line = (value: object) => console.log(JSON.stringify(value));
const write: (event: Event) => void = line;
const holder = "request 7", pool = "kv", pages: Pages = [1, 2];

line({ kvspec: 2, level: "memory", producer: "events.ts 1", pools: { kv: { page_size: 4, num_pages: 64 } } });
write({ op: "take", holder, pool, pages });
write({ op: "map", table: holder, holder, pool, pages, labels: ["5f2e", "91c0"] });
write({ op: "begin", id: 1, stream: "compute", writes: [{ table: holder, stop: 6 }], reads: [{ table: holder, stop: 6 }] });
write({ op: "end", id: 1 });
write({ op: "unmap", table: holder });
write({ op: "release", holder, pool, pages });
write({ op: "end_holder", holder });
write({ op: "idle" });
