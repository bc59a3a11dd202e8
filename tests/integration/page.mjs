// The daemon's page in headless Chromium: node page.mjs BASE_URL SCREENSHOT. Talks to the browser over its debugging pipe.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const [base, screenshot] = process.argv.slice(2);
const profile = mkdtempSync(join(tmpdir(), 'reprise-page-'));
const browser = spawn('chromium', ['--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage',
  '--remote-debugging-pipe', '--user-data-dir=' + profile, '--window-size=1280,820'],
  { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });

// ---- The debugging protocol: JSON messages with a zero byte after each
let nextId = 1, buffer = '';
const waiting = new Map();
browser.stdio[4].on('data', data => {
  buffer += data;
  for (let end = buffer.indexOf('\0'); end >= 0; end = buffer.indexOf('\0')) {
    const message = JSON.parse(buffer.slice(0, end));
    buffer = buffer.slice(end + 1);
    if (message.id && waiting.has(message.id)) {
      const { resolve, reject } = waiting.get(message.id);
      waiting.delete(message.id);
      message.error ? reject(new Error(message.error.message)) : resolve(message.result);
    }
    if (message.method === 'Runtime.exceptionThrown') problems.push(message.params.exceptionDetails.text);
  }
});
const problems = [];
let session;
function tell(method, params = {}) {
  const id = nextId++;
  browser.stdio[3].write(JSON.stringify({ id, method, params, sessionId: session }) + '\0');
  return new Promise((resolve, reject) => waiting.set(id, { resolve, reject }));
}
async function evaluate(expression) {
  const { result, exceptionDetails } = await tell('Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true });
  if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
  return result.value;
}
async function until(expression, what) {
  for (let i = 0; i < 600; ++i) {
    if (await evaluate(expression)) return;
    await new Promise(done => setTimeout(done, 50));
  }
  throw new Error(`never: ${what}; the page shows: ${await evaluate('document.body.innerText')}`);
}
const text = selector => evaluate(`document.querySelector(${JSON.stringify(selector)})?.innerText ?? ''`);
const count = selector => evaluate(`document.querySelectorAll(${JSON.stringify(selector)}).length`);
async function say(message, answers) {
  await evaluate(`document.getElementById('text').value = ${JSON.stringify(message)};
                  document.getElementById('form').requestSubmit();`);
  await until(`document.querySelectorAll('.cost').length === ${answers}`, 'an answer to ' + message);
  await until(`!document.getElementById('send').disabled`, 'the end of the answer');
}

async function test() {
  const { targetId } = await tell('Target.createTarget', { url: 'about:blank' });
  session = (await tell('Target.attachToTarget', { targetId, flatten: true })).sessionId;
  await tell('Runtime.enable');
  await tell('Page.enable');
  await tell('Page.navigate', { url: base + '/' });
  await until(`document.readyState === 'complete' && document.getElementById('state')?.innerText.includes('nano')`,
    'the page with the model');

  const others = (await (await fetch(base + '/v1/sessions')).json()).data.length;
  await say('Remember: the zulo port is 4312.', 1);
  await say('Remember: the mika owner is bakola.', 2);
  await say('What is the zulo port?', 3);
  assert.match(await text('#talk'), /The zulo port is 4312\./);
  assert.match(await text('.cost:last-child'), /window found .* tokens hit .* exact/);
  assert.equal(await count('button.session'), others + 1);
  assert.ok(await count('#blocks i.dram') >= 1, 'blocks are shown by tier');
  assert.match(await text('#place'), /windows at/);
  await until(`document.getElementById('ledger').innerText.includes('windows found')`, 'the ledger');

  // A fork goes its own way.
  await evaluate(`document.getElementById('fork').click()`);
  await until(`document.querySelectorAll('button.session').length === ${others + 2}`, 'the fork in the list');
  assert.match(await text('#talk'), /The zulo port is 4312\./);
  await evaluate(`document.getElementById('exact').checked = true`);
  await say('What is the mika owner?', 1);
  assert.match(await text('#talk'), /The mika owner is bakola\./);

  // An error is shown, and the page goes on.
  await evaluate(`fetch('/v1/sessions/' + current, { method: 'DELETE' })`);
  await say('Is anybody there?', 2);
  assert.match(await text('.cost.error'), /there is no session/);

  const { data } = await tell('Page.captureScreenshot', { format: 'png' });
  writeFileSync(screenshot, Buffer.from(data, 'base64'));
  assert.deepEqual(problems, []);
  console.log('ok page');
}

let failed = null;
try {
  await test();
} catch (error) {
  failed = error;
}
browser.kill('SIGKILL');
await new Promise(done => browser.on('exit', done));
rmSync(profile, { recursive: true, force: true });
if (failed) {
  console.error(failed);
  process.exit(1);
}
