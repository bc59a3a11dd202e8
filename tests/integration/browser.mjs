// Headless Chromium over its debugging pipe, for page tests: JSON messages with a zero byte after each.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const profile = mkdtempSync(join(tmpdir(), 'reprise-page-'));
const browser = spawn('chromium', ['--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage',
  '--remote-debugging-pipe', '--user-data-dir=' + profile, '--window-size=1280,820'],
  { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });

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
export const problems = [];
let session;
export function tell(method, params = {}) {
  const id = nextId++;
  browser.stdio[3].write(JSON.stringify({ id, method, params, sessionId: session }) + '\0');
  return new Promise((resolve, reject) => waiting.set(id, { resolve, reject }));
}
export async function evaluate(expression) {
  const { result, exceptionDetails } = await tell('Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true });
  if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
  return result.value;
}
export async function until(expression, what) {
  for (let i = 0; i < 600; ++i) {
    if (await evaluate(expression)) return;
    await new Promise(done => setTimeout(done, 50));
  }
  throw new Error(`never: ${what}; the page shows: ${await evaluate('document.body.innerText')}`);
}
export const text = selector => evaluate(`document.querySelector(${JSON.stringify(selector)})?.innerText ?? ''`);
export const count = selector => evaluate(`document.querySelectorAll(${JSON.stringify(selector)}).length`);

// A tab that shows `url`.
export async function open(url) {
  const { targetId } = await tell('Target.createTarget', { url: 'about:blank' });
  session = (await tell('Target.attachToTarget', { targetId, flatten: true })).sessionId;
  await tell('Runtime.enable');
  await tell('Page.enable');
  await tell('Page.navigate', { url });
  await until(`document.readyState === 'complete'`, 'the page');
}

export async function capture(file, more = {}) {
  const { data } = await tell('Page.captureScreenshot', { format: 'png', ...more });
  writeFileSync(file, Buffer.from(data, 'base64'));
}

// The browser's other processes may live, and write there, a moment longer. Retries of rmSync itself do not look for
// files that have come since.
async function removeProfile() {
  for (let left = 50; ; --left) {
    try {
      return rmSync(profile, { recursive: true, force: true });
    } catch (error) {
      if (left === 0) throw error;
      await new Promise(done => setTimeout(done, 100));
    }
  }
}

// Runs the test, ends the browser, and ends this process with its outcome.
export async function run(test) {
  let failed = null;
  try {
    await test();
  } catch (error) {
    failed = error;
  }
  browser.kill('SIGKILL');
  await new Promise(done => browser.on('exit', done));
  await removeProfile();
  if (failed) {
    console.error(failed);
    process.exit(1);
  }
}
