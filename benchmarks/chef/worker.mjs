// Compiles with @context-chef/core, one request a line on stdin and one answer a line on stdout.
//
// Only what an answer calls nanoseconds is timed; reading, writing and making ready are not.  The tokenizer counts each
// message object once: its counts are kept by the object, which compiling hands on as it is.
import { createInterface } from "node:readline";
import Anthropic from "@anthropic-ai/sdk";
import { ContextChef } from "@context-chef/core";
import { Tiktoken } from "js-tiktoken/lite";
import vocabulary from "js-tiktoken/ranks/cl100k_base";

const WINDOW = 10_000_000;
const MODEL = { model: "claude-opus-4-6", max_tokens: 1024 };
const REPLY = JSON.stringify({
  id: "msg_1",
  type: "message",
  role: "assistant",
  model: MODEL.model,
  content: [{ type: "text", text: "Done." }],
  stop_reason: "end_turn",
  stop_sequence: null,
  usage: { input_tokens: 1, output_tokens: 1 },
});

const encoding = new Tiktoken(vocabulary);
const silent = { warn() {} };
const runs = new Map();

function countText(text) {
  return encoding.encode(text, [], []).length;
}

function makeTokenizer(known = new WeakMap()) {
  function countMessage(message) {
    let count = known.get(message);
    if (count === undefined) {
      count = countText(message.content);
      for (const call of message.tool_calls ?? []) {
        count += countText(call.function.name) + countText(call.function.arguments);
      }
      known.set(message, count);
    }
    return count;
  }
  return (messages) => {
    let total = 0;
    for (const message of messages) total += countMessage(message);
    return total;
  };
}

function makeChef(system, janitor) {
  const chef = new ContextChef({ janitor, logger: silent });
  return chef.setSystemPrompt([{ role: "system", content: system }]);
}

const client = new Anthropic({
  apiKey: "none",
  maxRetries: 0,
  fetch: async () => new Response(REPLY, { headers: { "content-type": "application/json" } }),
});

// What is done with a payload inside the timed part.
const forms = {
  object: (payload) => payload,
  bytes: ({ meta, ...body }) => Buffer.from(JSON.stringify(body), "utf8"),
  sdk: ({ meta, ...body }) => client.messages.create({ ...MODEL, ...body }),
};

const requests = {
  load({ run, system, messages }) {
    const tokenizer = makeTokenizer();
    const chef = makeChef(system, { contextWindow: WINDOW, tokenizer });
    const tokens = tokenizer(messages);
    runs.set(run, { system, messages, tokenizer, tokens, chef });
    return { tokens };
  },

  // One new message a turn, then a compile; the model's answer joins beside the timed part.
  async appended({ run, form, turns }) {
    const { chef, messages, tokenizer } = runs.get(run);
    const use = forms[form];
    const length = messages.length;
    const nanoseconds = [];
    for (const [message, answer] of turns) {
      const begin = process.hrtime.bigint();
      messages.push(message);
      chef.setHistory(messages);
      await use(await chef.compile({ target: "anthropic" }));
      nanoseconds.push(Number(process.hrtime.bigint() - begin));
      messages.push(answer);
      tokenizer([answer]);
    }
    messages.length = length;
    return { nanoseconds };
  },

  // Another message in place of one in the middle.
  async edit({ run, index, message }) {
    const { chef, messages } = runs.get(run);
    const edited = [...messages];
    const begin = process.hrtime.bigint();
    edited[index] = message;
    chef.setHistory(edited);
    await chef.compile({ target: "anthropic" });
    return { nanoseconds: [Number(process.hrtime.bigint() - begin)] };
  },

  // A compile that replaces nearly all of the history by a summary, which is there at once.
  async compaction({ run, message, summary }) {
    const { system, messages, tokenizer, tokens } = runs.get(run);
    const strict = { contextWindow: tokens, preserveRatio: 0.01, tokenizer, compressionModel: async () => summary };
    const chef = makeChef(system, strict);
    const begin = process.hrtime.bigint();
    chef.setHistory([...messages, message]);
    const payload = await chef.compile({ target: "anthropic" });
    const nanoseconds = [Number(process.hrtime.bigint() - begin)];
    return { nanoseconds, messages: payload.messages.length };
  },

  // A whole history that nothing is known of.
  async cold({ run, message }) {
    const { system, messages } = runs.get(run);
    const begin = process.hrtime.bigint();
    const chef = makeChef(system, { contextWindow: WINDOW, tokenizer: makeTokenizer() });
    chef.setHistory([...messages, message]);
    await chef.compile({ target: "anthropic" });
    return { nanoseconds: [Number(process.hrtime.bigint() - begin)] };
  },

  async show({ run }) {
    const { chef, messages } = runs.get(run);
    const { meta, ...body } = await chef.setHistory(messages).compile({ target: "anthropic" });
    return { body };
  },
};

for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  const { request, ...given } = JSON.parse(line);
  let answer;
  globalThis.gc(); // what was thrown away before is no part of what is timed now
  try {
    answer = await requests[request](given);
  } catch (error) {
    answer = { error: String(error?.stack ?? error) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
