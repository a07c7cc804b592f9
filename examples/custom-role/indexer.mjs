// A role in another language: bare sockets, the NATS protocol and JSON, nothing of Kokuban's.
//
//     kokuban kinds add kinds/term-index.json
//     kokuban roles add indexer.toml
//     KOKUBAN_NATS_URL=nats://127.0.0.1:4222 node indexer.mjs
//
// docs/roles.md says what each line of this is for. The rules are in `step`, the wire is below it.
import { createHash, randomBytes } from "node:crypto";
import { connect } from "node:net";
import { credential } from "./credential.mjs";

const ROLE = "indexer";
const VERSION = 2; // the newest schema version that this program reads
const CONTRACT = ["term-index"];
const WORKER = `${ROLE}-${process.pid}-${randomBytes(4).toString("hex")}`; // per process life
const url = new URL(process.env.KOKUBAN_NATS_URL ?? "nats://127.0.0.1:4222");
const me = credential(process.env.KOKUBAN_CREDENTIALS, `role-${ROLE}`);
const digest = (text) => "sha256:" + createHash("sha256").update(text).digest("hex");
const wait = (ms) => new Promise((go) => setTimeout(go, ms));
const held = new Map(); // ack subject -> { task, step, register, fence, lost }

// ---------------------------------------------------------------- the work itself

function perform(glossaries) {
  const letters = new Map();
  const terms = new Set(glossaries.flatMap((glossary) => glossary.terms.map((entry) => entry.term)));
  for (const term of [...terms].sort()) {
    const letter = [...term][0].toUpperCase();
    letters.set(letter, [...(letters.get(letter) ?? []), term]);
  }
  return { count: terms.size, letters: Object.fromEntries(letters) };
}

// ---------------------------------------------------------------- one step, by the rules

async function step(delivery) {
  const orderSeq = sequence(delivery.reply);
  const text = delivery.data.toString("utf8");
  const record = JSON.parse(text);
  if ((record.version ?? 1) > VERSION) return answer(delivery, '-NAK {"delay": 5000000000}'); // not ours to judge
  if (digest(members(text).body) !== record.sha256) return answer(delivery, "+TERM");
  const order = record.body;
  const kind = order.produces.find((one) => CONTRACT.includes(one));
  if (kind === undefined) return answer(delivery, '-NAK {"delay": 5000000000}'); // asks for what we cannot give
  const at = { task: record.task, step: record.step, register: `kb.task.${record.task}.step.${ROLE}.${record.step}` };
  const base = { task: record.task, parent: record.parent, step: record.step, role: ROLE, attempt: record.attempt,
                 worker: WORKER, principal: record.principal, trace: record.trace };

  // The claim is a compare-and-set on the step's register; its sequence is the fence of everything that follows.
  const fence = await write(at.register, order.reg, { ...base, type: "step.claimed" },
                            JSON.stringify({ order: orderSeq, reg: order.reg }));
  if (fence === null) return answer(delivery, "+TERM"); // somebody else has it, or the order is void
  const mine = { ...at, fence, lost: false };
  held.set(delivery.reply, mine);
  try {
    const gone = (await last({ seq: orderSeq })) === null; // its task was archived meanwhile
    const inputs = gone ? [] : await Promise.all(
      order.inputs.filter((ref) => ref.kind === "glossary").map((ref) => content(ref)));
    const failure = gone ? "the order is no longer on the board" : inputs.includes(null) ? "an input is gone" : "";
    if (mine.lost) return; // fenced: write nothing, acknowledge nothing
    const artifact = failure || JSON.stringify(perform(inputs));
    const derived = (order.inputs ?? []).map((ref) => ref.digest);
    const sealed = { ...base, fence, derived_from: derived };
    const seq = failure
      ? await write(at.register, fence, { ...sealed, type: "step.failed" },
                    JSON.stringify({ why: "input", reason: failure, retryable: false }))
      : await write(at.register, fence, { ...sealed, type: "step.done" },
                    `{"results":[{"kind":"${kind}","name":"terms","digest":"${digest(artifact)}",` +
                    `"body":${artifact},"derived_from":${JSON.stringify(derived)}}]}`);
    if (seq !== null) await answer(delivery, "+ACK"); // null: fenced, so not even that
    else mine.lost = true;
  } finally {
    held.delete(delivery.reply);
    if (mine.lost) publish(`kl.stopped.${at.task}.${ROLE}.${at.step}`, JSON.stringify({ fence }));
  }
}

// An input: the artifact's bytes as they stand inside its `done`, checked against the digest that names them.
async function content(ref) {
  const found = await last({ seq: ref.seq });
  if (found === null) return null;
  const results = members(members(members(found.data.toString("utf8")).body).results);
  const bodies = Object.values(results).map((one) => members(one).body ?? "");
  const body = bodies.find((one) => digest(one) === ref.digest);
  return body === undefined ? null : JSON.parse(body);
}

// Compare-and-set with read-back. The stored sequence, or null when somebody else wrote first.
async function write(subject, expected, envelope, body) {
  const id = randomBytes(12).toString("hex");
  const time = new Date().toISOString();
  const head = JSON.stringify({ id, version: VERSION, ...envelope, time, sha256: digest(body) });
  const data = `${head.slice(0, -1)},"body":${body}}`; // the digest is over these very bytes
  const headers = { "Nats-Expected-Last-Subject-Sequence": expected, "Nats-Msg-Id": id };
  for (let pause = 20; ; pause = Math.min(500, pause * 2)) {
    const ack = await request(subject, data, headers).then((m) => JSON.parse(m.data.toString() || "{}"), () => ({}));
    if (ack.seq && !ack.error) return ack.seq;
    const there = await last({ last_by_subj: subject }).catch(() => undefined); // in doubt: what does the board say?
    if (there && JSON.parse(there.data.toString("utf8")).id === id) return there.seq; // it had landed
    if (there && there.seq > expected) return null; // it never will
    await wait(pause);
  }
}

// A stored message by sequence or the last on a subject; null when there is none. Rejects without an answer.
async function last(query) {
  const message = await request(`${me.api}.DIRECT.GET.BOARD`, JSON.stringify(query));
  if (message.status === "404") return null;
  if (!message.headers["nats-sequence"]) throw new Error(`not read: ${message.status}`);
  return { seq: Number(message.headers["nats-sequence"]), data: message.data };
}

// Once a second: say what is held, keep its delivery ours, and ask each register whether it is.
setInterval(() => {
  if (held.size === 0) return;
  const holds = [...held.values()].filter((one) => !one.lost).map((one) => [one.task, one.step, one.fence]);
  publish(`kl.heartbeat.${ROLE}.${WORKER}`, JSON.stringify({ holds }));
  for (const [ack, one] of held) {
    if (!one.lost) publish(ack, "+WPI");
    last({ last_by_subj: one.register }).then((found) => { one.lost ||= found !== null && found.seq > one.fence; },
                                              () => {}); // no answer says nothing
  }
}, 1000);

const answer = async (delivery, what) => publish(delivery.reply, what);
const sequence = (ack) => { // $JS.ACK.<stream>.<consumer>.<delivered>.<seq>..., or with domain and account before
  const tokens = ack.split(".");
  return Number(tokens[tokens.length > 9 ? 7 : 5]);
};

// The raw text of each member of a JSON object (by name) or array (by place): digests are over bytes as they stand.
function members(json) {
  const found = {};
  const pattern = /"(?:[^"\\]|\\.)*"|[{}[\],:]/gs;
  let depth = 0, start = 0, name = null, places = 0;
  for (const { 0: token, index } of json.matchAll(pattern)) {
    if (depth === 1 && (token === "," || token === "}" || token === "]")) {
      const value = json.slice(start, index).trim();
      if (value) found[name ?? places++] = value;
      [start, name] = [index + 1, null];
    }
    if (depth === 1 && token === ":") [name, start] = [JSON.parse(json.slice(start, index)), index + 1];
    if (token === "{" || token === "[") { depth += 1; if (depth === 1) start = index + 1; }
    if (token === "}" || token === "]") depth -= 1;
  }
  return found;
}

// ---------------------------------------------------------------- the NATS protocol

let inbox = "", socket = null, requests = 0;
const waiting = new Map(); // reply subject -> [resolve, reject]

function publish(subject, data, reply = "", headers = null) {
  const body = Buffer.from(data);
  const to = reply ? `${subject} ${reply}` : subject;
  if (!socket) return false; // dropped: whoever needs an answer will notice
  if (headers === null) return socket.write(Buffer.concat([Buffer.from(`PUB ${to} ${body.length}\r\n`), body, CRLF]));
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`).join("");
  const head = Buffer.from(`NATS/1.0\r\n${lines}\r\n`);
  return socket.write(Buffer.concat(
    [Buffer.from(`HPUB ${to} ${head.length} ${head.length + body.length}\r\n`), head, body, CRLF]));
}
const CRLF = Buffer.from("\r\n");

function request(subject, data, headers = null) {
  const reply = `${inbox}.${++requests}`;
  return new Promise((resolve, reject) => {
    const alarm = setTimeout(() => settle(reply, 1, new Error(`${subject}: no answer`)), 5000);
    waiting.set(reply, [resolve, reject, alarm]);
    if (!socket) settle(reply, 1, new Error("not connected"));
    else publish(subject, data, reply, headers);
  });
}

function settle(reply, which, value) {
  const entry = waiting.get(reply);
  if (!entry) return;
  waiting.delete(reply);
  clearTimeout(entry[2]);
  entry[which](value);
}

let asked = 0, busy = false;
function next() { // one order, because there is one slot: a fetched order that waits would age
  if (busy || !socket) return;
  asked = Date.now();
  publish(`${me.api}.CONSUMER.MSG.NEXT.BOARD.${ROLE}`, '{"batch":1,"expires":5000000000}', `${inbox}.pull`);
}
setInterval(() => { if (Date.now() - asked > 7000) next(); }, 1000); // the last request got lost

function onMessage(message) {
  if (message.subject !== `${inbox}.pull`) {
    if (!message.reply.startsWith("$JS.ACK.")) return settle(message.subject, 0, message);
    if (busy) return publish(message.reply, "-NAK");
    busy = true;
    step(message).catch((error) => console.error("left to the supervisor:", error.message))
      .finally(() => { busy = false; next(); });
  } else {
    setTimeout(next, message.status === "408" ? 0 : 500); // 408: nothing came in time; else no consumer yet
  }
}

function open() {
  let buffer = Buffer.alloc(0);
  const mine = connect(Number(url.port || 4222), url.hostname);
  mine.on("data", (chunk) => {
    buffer = Buffer.concat([buffer, chunk]);
    for (let end; (end = buffer.indexOf("\r\n")) >= 0; ) {
      const [word, ...rest] = buffer.subarray(0, end).toString().split(" ");
      if (word !== "MSG" && word !== "HMSG") {
        buffer = buffer.subarray(end + 2);
        if (word === "INFO" && socket !== mine) greet(mine, JSON.parse(rest.join(" ")));
        else if (word === "PING") mine.write("PONG\r\n");
        else if (word === "-ERR") console.error(word, ...rest);
        continue;
      }
      const total = Number(rest.at(-1)), head = word === "HMSG" ? Number(rest.at(-2)) : 0;
      if (buffer.length < end + 2 + total + 2) return;
      const raw = buffer.subarray(end + 2, end + 2 + total);
      buffer = buffer.subarray(end + 4 + total);
      const reply = rest.length === (head ? 5 : 4) ? rest[2] : "";
      const [first = "", ...lines] = raw.subarray(0, head).toString().split("\r\n");
      const headers = Object.fromEntries(lines.filter(Boolean).map((line) => {
        const [name, ...value] = line.split(":");
        return [name.toLowerCase(), value.join(":").trim()];
      }));
      onMessage({ subject: rest[0], sid: rest[1], reply, headers, status: first.split(" ")[1] ?? "",
                  data: raw.subarray(head) });
    }
  });
  mine.on("error", () => {});
  mine.on("close", () => {
    socket = null;
    for (const reply of [...waiting.keys()]) settle(reply, 1, new Error("disconnected"));
    setTimeout(open, 200);
  });
}

function greet(mine, info) {
  const login = url.username ? { user: decodeURIComponent(url.username), pass: decodeURIComponent(url.password) } : {};
  inbox = `${me.inbox}.${randomBytes(11).toString("hex")}`; // a new one: what the old connection asked for is void
  mine.write(`CONNECT ${JSON.stringify({ verbose: false, pedantic: false, headers: true, no_responders: true, lang: "node",
    version: "1", protocol: 1, name: WORKER, ...login, ...me.login(info.nonce) })}\r\nSUB ${inbox}.* 1\r\n`);
  socket = mine;
  next();
}

process.on("SIGTERM", () => process.exit(0));
open();
