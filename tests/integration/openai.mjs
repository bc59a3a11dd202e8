// The official client of OpenAI against a running daemon: node openai.mjs BASE_URL, with the package in NODE_PATH's place
// (see openai_test). Ends with 0 when everything is as that client expects it.
import assert from 'node:assert/strict';
import OpenAI from 'openai';

const client = new OpenAI({ baseURL: process.argv[2] + '/v1', apiKey: 'unused', maxRetries: 0 });
const model = 'nano';
const user = content => [{ role: 'user', content }];
const ask = (content, more = {}) =>
  client.chat.completions.create({ model, messages: user(content), temperature: 0, max_tokens: 60, ...more });

const tests = {
  async models() {
    const list = await client.models.list();
    assert.deepEqual(list.data.map(entry => entry.id), [model]);
    assert.equal((await client.models.retrieve(model)).id, model);
    await assert.rejects(client.models.retrieve('other'), OpenAI.NotFoundError);
  },
  async chat() {
    const answer = await ask('Remember: the zulo port is 4312.');
    assert.equal(answer.choices[0].message.role, 'assistant');
    assert.match(answer.choices[0].message.content, /zulo port/);
    assert.equal(answer.choices[0].finish_reason, 'stop');
    assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
    const again = await ask('Remember: the zulo port is 4312.');
    assert.deepEqual(again.choices[0].message, answer.choices[0].message);
    assert.equal(typeof again.usage.prompt_tokens_details.cached_tokens, 'number');
  },
  async tools() {
    const tools = [{ type: 'function', function: { name: 'calc', description: 'Computes.', parameters: {
      type: 'object', properties: { expression: { type: 'string' } }, required: ['expression'] } } }];
    const messages = user('Compute 47*12.');
    const first = await client.chat.completions.create({ model, messages, tools, temperature: 0 });
    assert.equal(first.choices[0].finish_reason, 'tool_calls');
    const [call] = first.choices[0].message.tool_calls;
    assert.equal(call.function.name, 'calc');
    assert.deepEqual(JSON.parse(call.function.arguments), { expression: '47*12' });
    messages.push(first.choices[0].message, { role: 'tool', tool_call_id: call.id, content: '564' });
    const second = await client.chat.completions.create({ model, messages, tools, temperature: 0 });
    assert.match(second.choices[0].message.content, /564/);
    assert.ok(second.usage.prompt_tokens_details.cached_tokens > 64);
    assert.equal(second.reprise.window, 'found');
  },
  async streaming() {
    const whole = await ask('Remember: the rano level is 77.');
    const stream = await ask('Remember: the rano level is 77.', { stream: true, stream_options: { include_usage: true } });
    let text = '', finish = null, usage = null, report = null, chunks = 0;
    for await (const chunk of stream) {
      ++chunks;
      text += chunk.choices[0]?.delta?.content ?? '';
      finish = chunk.choices[0]?.finish_reason ?? finish;
      usage = chunk.usage ?? usage;
      report = chunk.reprise ?? report;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(finish, 'stop');
    assert.ok(chunks > 3);
    assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
    assert.ok(['found', 'replayed', 'cold'].includes(report.window));
  },
  async streamedTools() {
    const stream = await ask('Compute 47*12.', { stream: true });
    let calls = [], finish = null;
    for await (const chunk of stream) {
      calls.push(...(chunk.choices[0]?.delta?.tool_calls ?? []));
      finish = chunk.choices[0]?.finish_reason ?? finish;
    }
    assert.equal(calls.length, 1);
    assert.equal(calls[0].index, 0);
    assert.equal(finish, 'tool_calls');
  },
  async stopAndLength() {
    const full = (await ask('Repeat: abcdefgh')).choices[0].message.content;
    const stop = full.slice(4, 7);
    const stopped = await ask('Repeat: abcdefgh', { stop: [stop, 'never seen'] });
    assert.equal(stopped.choices[0].message.content, full.slice(0, full.indexOf(stop)));
    assert.equal(stopped.choices[0].finish_reason, 'stop');
    const cut = await ask('Repeat: abcdefgh', { max_tokens: 3 });
    assert.equal(cut.choices[0].finish_reason, 'length');
    assert.equal(cut.usage.completion_tokens, 3);
  },
  async logprobs() {
    const answer = await ask('Repeat: xyz', { logprobs: true, top_logprobs: 3 });
    const { content } = answer.choices[0].logprobs;
    assert.equal(content.length, answer.usage.completion_tokens);
    for (const token of content) {
      assert.ok(token.logprob <= 0);
      assert.equal(token.top_logprobs.length, 3);
      assert.ok(Math.abs(token.top_logprobs[0].logprob - token.logprob) < 1e-9);  // Greedy.
    }
    const bytes = content.flatMap(token => token.bytes);
    assert.ok(Buffer.from(bytes).toString().startsWith(answer.choices[0].message.content));
  },
  async severalAnswers() {
    const request = { model, prompt: 'The list of', max_tokens: 12, n: 3, temperature: 1, seed: 5 };
    const one = await client.completions.create(request);
    assert.equal(one.choices.length, 3);
    assert.deepEqual(one.choices.map(choice => choice.index), [0, 1, 2]);
    assert.ok(new Set(one.choices.map(choice => choice.text)).size > 1);
    const two = await client.completions.create(request);
    assert.deepEqual(two.choices.map(choice => choice.text), one.choices.map(choice => choice.text));
    const other = await client.completions.create({ ...request, seed: 6 });
    assert.notDeepEqual(other.choices.map(choice => choice.text), one.choices.map(choice => choice.text));
  },
  async completions() {
    const greedy = { model, prompt: 'Debian is', max_tokens: 8, temperature: 0 };
    const plain = await client.completions.create(greedy);
    const echoed = await client.completions.create({ ...greedy, echo: true, logprobs: 2 });
    assert.equal(echoed.choices[0].text, 'Debian is' + plain.choices[0].text);
    assert.equal(echoed.choices[0].logprobs.tokens.length, 8);
    const ids = [256, ...Buffer.from('Debian is')];
    assert.equal((await client.completions.create({ ...greedy, prompt: ids })).choices[0].text, plain.choices[0].text);
    const stream = await client.completions.create({ ...greedy, stream: true });
    let text = '';
    for await (const chunk of stream) text += chunk.choices[0].text;
    assert.equal(text, plain.choices[0].text);
  },
  async reasoning() {
    const answer = await ask('What is the zulo port?', { reasoning_effort: 'high', max_tokens: 40 });
    assert.equal(typeof answer.choices[0].message.reasoning_content, 'string');
  },
  async errors() {
    const fails = (request, kind, param) => assert.rejects(client.chat.completions.create(request), error => {
      assert.ok(error instanceof kind, error);
      assert.equal(error.param ?? null, param);
      return true;
    });
    await fails({ model: 'gpt-9', messages: user('x') }, OpenAI.NotFoundError, 'model');
    await fails({ model, messages: [] }, OpenAI.BadRequestError, 'messages');
    await fails({ model, messages: user('x'), max_tokens: -1 }, OpenAI.BadRequestError, 'max_tokens');
    await fails({ model, messages: user('x'), temperature: 9 }, OpenAI.BadRequestError, 'temperature');
    await fails({ model, messages: user('x'), n: 99 }, OpenAI.BadRequestError, 'n');
    await fails({ model, messages: user('x'.repeat(40000)) }, OpenAI.BadRequestError, null);
    await fails({ model, messages: user('x'), logit_bias: { 5: 100 } }, OpenAI.BadRequestError, 'logit_bias');
  },
  async leaving() {
    const stream = await client.completions.create({ model, prompt: 'On and on', max_tokens: 20000, stream: true });
    let chunks = 0;
    for await (const chunk of stream) {
      if (++chunks === 3) break;  // Closes the connection.
    }
    for (let i = 0; i < 200; ++i) {
      const { serving } = await (await fetch(process.argv[2] + '/status')).json();
      if (serving.running === 0 && serving.buffers_reserved === 0) return;
      await new Promise(done => setTimeout(done, 20));
    }
    assert.fail('the answer that nobody reads goes on');
  },
};

for (const [name, test] of Object.entries(tests)) {
  await test();
  console.log('ok', name);
}
