// A report of `reprise simulate --html` in headless Chromium, in the light, in the dark and in print:
// node report.mjs FILE SCREENSHOT_FOLDER.
import assert from 'node:assert/strict';
import { capture, count, evaluate, open, problems, run, tell, text } from './browser.mjs';

const [file, folder] = process.argv.slice(2);

// Contrast of the page's ink on its paper, as WCAG counts it.
const contrast = () => evaluate(`(() => {
  const light = color => {
    const [r, g, b] = color.match(/[\\d.]+/g).map(Number).map(v => v / 255)
      .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const style = getComputedStyle(document.body);
  const [a, b] = [light(style.color), light(style.backgroundColor)].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
})()`);

async function test() {
  await open('file://' + file);
  assert.match(await text('.verdict'), /of the ceiling on this trace/);
  assert.ok(await count('svg') >= 9, 'plots');
  assert.equal(await count('section'), await count('section h2'));
  assert.equal(await evaluate(`[...document.querySelectorAll('svg')].some(s => /nan|inf/i.test(s.outerHTML.replace(/<text.*?<\\/text>/g, '')))`),
    false, 'every point has a place');

  // Prices are sliders: dearer GPUs save more, and nothing else changes.
  const usd = name => evaluate(`document.querySelector('[data-usd=${name}]').textContent`);
  const before = [await usd('saved'), await usd('held_dram')];
  await evaluate(`{ const i = document.querySelector('[name=gpu]'); i.value = 1; i.dispatchEvent(new Event('input', { bubbles: true })); }`);
  const [saved, held] = [await usd('saved'), await usd('held_dram')];
  const value = t => Number(t.replace(/[$,]/g, ''));
  assert.ok(Math.abs(value(saved) / value(before[0]) - 2) < 0.02, `${before[0]} became ${saved}`);
  assert.equal(held, before[1]);

  for (const [media, scheme] of [['screen', 'light'], ['screen', 'dark'], ['print', 'light']]) {
    await tell('Emulation.setEmulatedMedia', { media, features: [{ name: 'prefers-color-scheme', value: scheme }] });
    assert.ok(await contrast() > 7, `${media} ${scheme} is readable`);
    for (const width of [1280, 420]) {
      await tell('Emulation.setDeviceMetricsOverride', { width, height: 900, deviceScaleFactor: 1, mobile: false });
      assert.equal(await evaluate(`document.documentElement.scrollWidth <= ${width}`), true, `fits ${width} px`);
    }
    await tell('Emulation.setDeviceMetricsOverride', { width: 900, height: 900, deviceScaleFactor: 1, mobile: false });
    await capture(`${folder}/report-${media}-${scheme}.png`, { captureBeyondViewport: true });
  }
  assert.equal(await evaluate(`getComputedStyle(document.querySelector('.prices')).display`), 'none', 'no sliders on paper');
  assert.deepEqual(problems, []);
  console.log('ok report');
}

await run(test);
