// A credential that `kokuban auth` wrote: an nkey's seed (Ed25519), with whose it is above it in comments.
import { createPrivateKey, createPublicKey, sign } from "node:crypto";
import { readFileSync, statSync } from "node:fs";
import { join } from "node:path";

const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
const USER = 20 << 3; // the first byte of a user's public key

/** How to connect as `user` with the file at `path` (or in that folder); without a path, as anybody. */
export function credential(path, user) {
  if (!path) return { api: "$JS.API", inbox: "_INBOX", login: () => ({}) };
  const text = readFileSync(statSync(path).isDirectory() ? join(path, `${user}.nk`) : path, "ascii");
  const seed = decode(text.match(/^SU[A-Z2-7]{56}$/m)[0]).subarray(2, 34);
  const key = createPrivateKey({ // PKCS 8 around the 32 bytes
    key: Buffer.concat([Buffer.from("302e020100300506032b657004220420", "hex"), seed]), format: "der", type: "pkcs8" });
  const raw = Buffer.from(createPublicKey(key).export({ format: "jwk" }).x, "base64url");
  const named = Buffer.concat([Buffer.from([USER]), raw]);
  const check = Buffer.alloc(2);
  check.writeUInt16LE(crc16(named));
  const nkey = encode(Buffer.concat([named, check]));
  const inbox = `_INBOX_${text.match(/^#\s*user:\s*(\S+)/m)[1]}`; // the server lets nobody else listen there
  return { api: "$JS.board.API", inbox, login: (nonce) => ({ nkey, sig: sign(null, Buffer.from(nonce), key).toString("base64") }) };
}

function decode(text) {
  const bits = [...text].map((letter) => ALPHABET.indexOf(letter).toString(2).padStart(5, "0")).join("");
  return Buffer.from(bits.match(/.{8}/g).map((byte) => parseInt(byte, 2)));
}

function encode(bytes) {
  const bits = [...bytes].map((byte) => byte.toString(2).padStart(8, "0")).join("");
  return bits.match(/.{1,5}/g).map((five) => ALPHABET[parseInt(five.padEnd(5, "0"), 2)]).join("");
}

function crc16(bytes) {
  let crc = 0;
  for (const byte of bytes) {
    crc ^= byte << 8;
    for (let i = 0; i < 8; i += 1) crc = (crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1) & 0xffff;
  }
  return crc;
}
