"use strict";
// Stands between a client and the server, and passes bytes on as they are. Counts connections, and the frames of
// HTTP/2 by kind in both directions: so a test sees whether a connection was kept, and waits for frames that an
// implementation does not tell of.

const net = require("node:net");

const PREFACE_BYTES = 24;
const HEAD_BYTES = 9;
const PING = 6;
const GOAWAY = 7;
const ACK = 1;

// Counts the frames of one direction.
class Frames {
  constructor(skip, counts) {
    this.skip = skip;
    this.head = Buffer.alloc(0);
    this.counts = counts;
  }

  take(bytes) {
    for (let at = 0; at < bytes.length; ) {
      if (this.skip > 0) {
        const skipped = Math.min(this.skip, bytes.length - at);
        this.skip -= skipped;
        at += skipped;
        continue;
      }
      const part = bytes.subarray(at, at + HEAD_BYTES - this.head.length);
      this.head = Buffer.concat([this.head, part]);
      at += part.length;
      if (this.head.length === HEAD_BYTES) {
        const [kind, flags] = [this.head[3], this.head[4]];
        if (kind === PING && flags & ACK) this.counts.pongs += 1;
        else if (kind === PING) this.counts.pings += 1;
        else if (kind === GOAWAY) this.counts.goaways += 1;
        this.skip = this.head.readUIntBE(0, 3);
        this.head = Buffer.alloc(0);
      }
    }
  }
}

class Relay {
  constructor(upstream) {
    this.upstream = upstream;
    this.connections = 0;
    const counts = () => ({ pings: 0, pongs: 0, goaways: 0 });
    this.client = counts();
    this.server = counts();
  }

  // The address of the relay, once it listens.
  async start() {
    this.listener = net.createServer((socket) => this.pass(socket));
    await new Promise((listens) => this.listener.listen(0, "127.0.0.1", listens));
    return `127.0.0.1:${this.listener.address().port}`;
  }

  pass(socket) {
    this.connections += 1;
    const server = net.connect(this.upstream);
    const directions = [
      [socket, server, new Frames(PREFACE_BYTES, this.client)],
      [server, socket, new Frames(0, this.server)],
    ];
    for (const [from, to, frames] of directions) {
      from.on("data", (bytes) => {
        frames.take(bytes);
        if (!to.write(bytes)) from.pause();
      });
      to.on("drain", () => from.resume());
      from.on("end", () => to.end());
      from.on("error", () => to.destroy());
      from.on("close", () => to.destroy());
    }
  }

  stop() {
    this.listener.close();
  }
}

module.exports = { Relay };
