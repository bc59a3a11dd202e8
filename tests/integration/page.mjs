// The daemon's page in headless Chromium: node page.mjs BASE_URL SCREENSHOT.
import assert from 'node:assert/strict';
import { capture, count, evaluate, open, problems, run, text, until } from './browser.mjs';

const [base, screenshot] = process.argv.slice(2);

async function say(message, answers) {
  await evaluate(`document.getElementById('text').value = ${JSON.stringify(message)};
                  document.getElementById('form').requestSubmit();`);
  await until(`document.querySelectorAll('.cost').length === ${answers}`, 'an answer to ' + message);
  await until(`!document.getElementById('send').disabled`, 'the end of the answer');
}

async function test() {
  await open(base + '/');
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

  await capture(screenshot);
  assert.deepEqual(problems, []);
  console.log('ok page');
}

await run(test);
