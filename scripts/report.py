#!/usr/bin/env python3
"""Renders a report of `hamlyn-tour` in a headless Chromium, and checks the visible page.

    scripts/report.py REPORT.html [FOLDER]    with a folder: screenshots are saved there

At 1280 and at 390 pixels (in a frame, because a headless Chromium has no window below 500), light
and dark: nothing is wider than the screen, the verdict comes first, durations stay on one line,
names break only where a name can, labels of charts neither overlap nor are cut off, those of cells
stand beside their values, and text contrasts with its background. Exit status 1: a check failed;
99: there is no Chromium.
"""

import base64
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import unquote

LIMIT_S = 120
# (width, dark) of a screen.
SCREENS = [(1280, False), (1280, True), (390, False), (390, True)]
# A headless Chromium has no narrower window.
WINDOW_MIN = 500
# WCAG 2.1's values for ordinary text, and for graphics.
CONTRAST_MIN = 4.5
DRAWN_CONTRAST_MIN = 2.0

PROBE = """
<script>
addEventListener('load', () => {
  const wrong = [], root = document.documentElement;
  const say = (what, where) => wrong.push(what + ': ' + (where.textContent || '').trim().slice(0, 60));
  const box = (e) => e.getBoundingClientRect();
  const seen = (e) => box(e).width > 0 && box(e).height > 0;
  const all = (s, within) => [...(within || document).querySelectorAll(s)].filter(seen);
  const width = root.clientWidth;
  if (root.scrollWidth > width + 1) wrong.push('the page is ' + root.scrollWidth + ' wide');
  for (const e of all('p, li, td, th, svg text'))
    if (box(e).right > width + 1 || box(e).left < -1) say('beyond the screen', e);
  const findings = all('.findings li');
  if (findings.length < 2) wrong.push('no verdict');
  for (const e of findings)
    if (box(e).bottom > box(document.querySelector('.facts')).top) say('the verdict is not first', e);
  const lines = (e) => {
    const range = document.createRange();
    range.selectNodeContents(e.querySelector('span') || e);
    return new Set([...range.getClientRects()].map((r) => Math.round(r.top))).size;
  };
  const durations = all('td').filter((e) => /^[0-9.]+ (ns|us|ms|s|[kMG]?B?\\/s)$/.test(e.textContent));
  if (durations.length < 8) wrong.push('there are ' + durations.length + ' durations and rates');
  for (const e of durations) if (lines(e) !== 1) say('on several lines', e);
  // Words and parts of names stay whole, and the label before a value leaves it its place.
  for (const cell of all('td')) {
    const e = cell.querySelector('span') || cell;
    for (const node of e.childNodes) {
      const words = node.nodeType === Node.TEXT_NODE ? node.data.matchAll(/\\S{2,23}/g) : [];
      for (const word of words) {
        const range = document.createRange();
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        const tops = new Set([...range.getClientRects()].map((r) => Math.round(r.top)));
        if (tops.size > 1 && !/[-?]/.test(word[0])) say('the word "' + word[0] + '" is broken', e);
      }
    }
    const label = getComputedStyle(cell, '::before');
    if (label.content !== 'none') {
      const pen = document.createElement('canvas').getContext('2d');
      pen.font = label.fontWeight + ' ' + label.fontSize + ' ' + label.fontFamily;
      const of = cell.dataset.of.split(' ');
      const wide = Math.max(...of.map((word) => pen.measureText(word).width));
      const room = box(e).left - box(cell).left;
      if (label.whiteSpace !== 'normal' || wide > room + 1) say('its label runs over it', e);
    }
  }
  const rgb = (text) => (text.match(/[0-9.]+/g) || []).map(Number);
  const light = (c) => {
    const [r, g, b] = c.slice(0, 3).map((v) => v / 255)
      .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
    return (x + 0.05) / (y + 0.05);
  };
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  for (const e of all('p, li, td, th, h1, h2'))
    if (contrast(rgb(getComputedStyle(e).color), behind(e)) < CONTRAST) say('is hard to read', e);
  const charts = all('svg');
  for (const svg of charts) {
    const frame = box(svg), texts = all('text', svg);
    if (texts.length < 4) say('a chart without labels', svg);
    for (const e of texts) {
      const b = box(e);
      if (b.left < frame.left - 1 || b.right > frame.right + 1 || b.bottom > frame.bottom + 1)
        say('a label is cut off', e);
      if (b.height < 9) say('a label is too small', e);
      if (contrast(rgb(getComputedStyle(e).fill), behind(svg)) < CONTRAST) say('is hard to read', e);
    }
    texts.forEach((e, i) => texts.slice(i + 1).forEach((f) => {
      const a = box(e), b = box(f);
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
          && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4)
        say('overlaps "' + f.textContent.trim() + '"', e);
    }));
    for (const e of all('rect, circle', svg))
      if (contrast(rgb(getComputedStyle(e).fill), behind(svg)) < DRAWN) say('a value is not seen', svg);
  }
  const dark = matchMedia('(prefers-color-scheme: dark)').matches;
  const result = { width, dark, charts: charts.length, wrong };
  const text = btoa(encodeURIComponent(JSON.stringify(result)));
  if (parent !== window) parent.postMessage(text, '*');
  else root.innerHTML = '<pre id=probe>' + text + '</pre>';
});
</script>
"""


# A page around the report that is narrower than a window can be.
FRAME = """<!DOCTYPE html><body style="margin: 0">
<iframe src="URL" style="border: 0; width: WIDTHpx; height: HEIGHTpx"></iframe>
<script>
addEventListener('message', (e) => {
  document.body.innerHTML = '<pre id=probe></pre>';
  document.body.firstChild.textContent = e.data;
});
</script>
"""


def framed(page, folder, width, height):
    if width >= WINDOW_MIN:
        return page
    frame = folder / f"framed-{width}-{page.name}"
    values = {"URL": page.as_uri(), "WIDTH": str(width), "HEIGHT": str(height)}
    frame.write_text(re.sub("URL|WIDTH|HEIGHT", lambda found: values[found[0]], FRAME))
    return frame


def browse(chromium, profile, page, width, dark, *what):
    command = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
               f"--user-data-dir={profile}", f"--window-size={max(width, WINDOW_MIN)},900"]
    if dark:
        command.append("--blink-settings=preferredColorScheme=0")
    run = subprocess.run([*command, *what, page.as_uri()], capture_output=True, text=True,
                         timeout=LIMIT_S)
    if run.returncode != 0:
        sys.exit(f"{chromium} has failed: {run.stderr[-500:]}")
    return run.stdout


def main():
    report = Path(sys.argv[1]).resolve()
    names = ["chromium", "chromium-browser", "google-chrome"]
    chromium = next(filter(None, map(shutil.which, names)), None)
    if chromium is None:
        print(f"the report was not looked at: there is no {', '.join(names)}")
        return 99
    probe = PROBE.replace("CONTRAST", str(CONTRAST_MIN)).replace("DRAWN", str(DRAWN_CONTRAST_MIN))
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "probed.html"
        page.write_text(report.read_text().replace("</body>", probe + "</body>"))
        for width, dark in SCREENS:
            name = f"{width}-{'dark' if dark else 'light'}"
            shown = framed(page, Path(folder), width, 900)
            text = browse(chromium, Path(folder) / "profile", shown, width, dark, "--dump-dom")
            found = re.search(r'<pre id="probe">([^<]*)</pre>', text)
            if not found:
                sys.exit(f"{name}: the page has not said what it measured: {text[-300:]}")
            said = json.loads(unquote(base64.b64decode(found[1]).decode()))
            if (said["width"], said["dark"]) != (width, dark):
                sys.exit(f"{name}: rendered {said['width']} wide, dark: {said['dark']}")
            for what in said["wrong"]:
                print(f"{name}: {what}")
            wrong += len(said["wrong"])
            print(f"{name}: {said['charts']} charts, {len(said['wrong'])} things wrong")
            if len(sys.argv) > 2:
                shot = Path(sys.argv[2]).resolve() / f"{name}.png"
                shown = framed(report, Path(folder), width, 12000)
                browse(chromium, Path(folder) / "profile", shown, width, dark,
                       f"--window-size={max(width, WINDOW_MIN)},12000", f"--screenshot={shot}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
