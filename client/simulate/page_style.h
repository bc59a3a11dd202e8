#pragma once

// The style sheet and the script of the page that study_page.cc writes.
namespace reprise {

inline constexpr const char* kPageStyle = R"css(
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --paper: #ffffff; --card: #f6f8fa;
  --rule: #d0d7de; --grid: #e4e8ec; --shade: #00000012;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #cc79a7; --c4: #e69f00; --c5: #56b4e9; --c6: #8c8c8c; --c7: #6f42c1; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --paper: #0d1117; --card: #161b22;
  --rule: #3d444d; --grid: #262c33; --shade: #ffffff14;
  --c0: #4ea8de; --c1: #ff8c42; --c2: #2bc495; --c3: #e39cc5; --c4: #f2b530; --c5: #85ccf2; --c6: #a5a5a5; --c7: #a78bfa; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 840px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 22px; margin: 0 0 4px; overflow-wrap: anywhere; } h2 { font-size: 17px; margin: 34px 0 4px; }
p { margin: 6px 0; } .soft { color: var(--soft); font-size: 13px; }
.verdict { font-size: 18px; border-left: 4px solid var(--c0); padding: 6px 14px; background: var(--card); margin: 14px 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 10px; margin: 14px 0; }
.tile { background: var(--card); border: 1px solid var(--rule); border-radius: 6px; padding: 10px 12px; }
.tile b { display: block; font-size: 21px; } .tile span { color: var(--soft); font-size: 13px; }
svg { width: 100%; height: auto; display: block; margin: 8px 0; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
.grid { stroke: var(--grid); } .axis { stroke: var(--soft); } .marker { stroke: var(--soft); stroke-dasharray: 3 3; }
.shade { fill: var(--shade); }
.line { fill: none; stroke-width: 2.2; stroke: var(--c); } .dash { stroke-dasharray: 6 4; }
.bar { fill: var(--c); } .dot { fill: var(--c); stroke: var(--paper); }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); }
.c4 { --c: var(--c4); } .c5 { --c: var(--c5); } .c6 { --c: var(--c6); } .c7 { --c: var(--c7); }
table { border-collapse: collapse; width: 100%; font-size: 13px; margin: 6px 0; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 3px 8px; border-bottom: 1px solid var(--grid); }
th:first-child, td:first-child { text-align: left; } th { color: var(--soft); font-weight: 600; }
.scroll { overflow-x: auto; }
@media screen { details:not([open]) > :not(summary) { display: none; } }
details { margin: 4px 0; } summary { cursor: pointer; color: var(--soft); font-size: 13px; }
.prices { background: var(--card); border: 1px solid var(--rule); border-radius: 6px; padding: 10px 14px;
  display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: 8px 18px; }
.prices label { font-size: 13px; } .prices input { width: 100%; margin: 2px 0; accent-color: var(--c0); }
code { background: var(--card); padding: 1px 4px; border-radius: 3px; overflow-wrap: anywhere; }
@media print { :root { --ink: #000; --soft: #333; --paper: #fff; --card: #fff; --rule: #999; --grid: #ddd; }
  section { break-inside: avoid; } .prices { display: none; } }
)css";

// Base quantities are in the element #base as JSON; elements with data-usd name a sum.
inline constexpr const char* kPageScript = R"js(
(() => {
  const base = JSON.parse(document.getElementById('base').textContent);
  const inputs = [...document.querySelectorAll('.prices input')];
  const usd = v => (v < 0 ? '-$' : '$') + Math.abs(v).toFixed(Math.abs(v) >= 100 ? 0 : Math.abs(v) >= 1 ? 2 : 4);
  const update = () => {
    const p = Object.fromEntries(inputs.map(i => [i.name, base[i.name] * 2 ** i.value]));
    for (const i of inputs) document.getElementById('v-' + i.name).textContent = +p[i.name].toPrecision(3);
    const gpu = p.gpu / base.gpu * base.rate / p.rate, dram = p.dram / base.dram, ssd = p.ssd / base.ssd;
    const sums = { saved: base.saved * gpu, replay: base.replay * gpu, held_dram: base.held_dram * dram,
      held_window: base.held_window * dram, held_ssd: base.held_ssd * ssd, wear: base.wear * ssd,
      held_hbm: base.held_hbm * p.gpu / base.gpu };
    sums.spent = sums.replay + sums.held_dram + sums.held_window + sums.held_ssd + sums.wear + sums.held_hbm;
    sums.net = sums.saved - sums.spent;
    sums.net_day = base.days > 0 ? sums.net / base.days : 0;
    for (const e of document.querySelectorAll('[data-usd]')) e.textContent = usd(sums[e.dataset.usd]);
  };
  for (const i of inputs) i.addEventListener('input', update);
  addEventListener('beforeprint', () => { for (const d of document.querySelectorAll('details')) d.open = true; });
})();
)js";

}  // namespace reprise
