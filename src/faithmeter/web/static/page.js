"use strict";
// The page asks the server, waits, and shows. Fragments of HTML come from the server, which has made them harmless;
// everything else is set as text.
const by = (id) => document.getElementById(id);
let running = null;
let answer = [];

async function call(path, options = {}) {
  const response = await fetch(path, options);
  const content = await response.json();
  if (!response.ok) throw new Error(content.error || "The server could not answer.");
  return content;
}

function say(text, problem = false) {
  by("status").textContent = text;
  by("status").className = problem ? "problem" : "";
}

const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

async function explain(event) {
  event.preventDefault();
  const mine = {};
  await cancel();
  running = mine;
  by("cancel").hidden = false;
  say("Explaining …");
  try {
    const question = {
      text: by("text").value,
      context: by("context") ? by("context").value : null,
      target: by("target").value,
      measures: [by("first").value, by("second").value].filter((name) => name),
    };
    const headers = { "Content-Type": "application/json" };
    mine.job = (await call("/explanations", { method: "POST", headers, body: JSON.stringify(question) })).job;
    for (let pause = 100; running === mine; pause = Math.min(1000, pause * 1.3)) {
      const found = await call(`/explanations/${mine.job}`);
      if (running !== mine) return;
      if (found.state === "running") {
        say(`Explaining … ${found.passes} passes through the model so far`);
        await wait(pause);
        continue;
      }
      if (found.state === "failed") throw new Error(found.error);
      say(found.state === "cancelled" ? "Cancelled." : "");
      if (found.state === "done") show(found.answer);
      break;
    }
  } catch (error) {
    if (running === mine) say(error.message, true);
  } finally {
    if (running === mine) {
      running = null;
      by("cancel").hidden = true;
    }
  }
}

async function cancel() {
  const job = running && running.job;
  running = null;
  by("cancel").hidden = true;
  say("Cancelled.");
  if (job) await call(`/explanations/${job}`, { method: "DELETE", keepalive: true }).catch(() => {});
}

function show(explanations) {
  answer = explanations;
  by("answer").hidden = false;
  by("explanations").replaceChildren(
    ...explanations.map((one) => {
      const box = document.createElement("article");
      box.className = "one";
      const title = document.createElement("h2");
      title.textContent = one.measure;
      const text = document.createElement("div");
      text.className = "text";
      const curve = document.createElement("div");
      curve.innerHTML = one.curve;
      const numbers = document.createElement("p");
      numbers.className = "numbers";
      const warnings = one.warnings.map((said) => {
        const line = document.createElement("p");
        line.className = "care";
        line.textContent = said;
        return line;
      });
      box.append(title, ...warnings, text, numbers, curve);
      return box;
    }),
  );
  draw();
}

function draw() {
  const step = Number(by("masking").value);
  const level = by("level").value;
  by("share").textContent = `${10 * step} %`;
  answer.forEach((one, number) => {
    const box = by("explanations").children[number];
    const text = box.querySelector(".text");
    if (text.dataset.level !== level) {
      text.innerHTML = one[level];
      text.dataset.level = level;
    }
    const masked = new Set(one.steps[step][level]);
    text.querySelectorAll("[data-n]").forEach((span) => {
      span.classList.toggle("fm-masked", masked.has(Number(span.dataset.n)));
    });
    const at = one.steps[step];
    const p = at.p_value === null ? "" : ` In-distribution p-value ${at.p_value.toFixed(3)}.`;
    const racu = one.racu === null ? "none" : one.racu.toFixed(2);
    const numbers = box.querySelector(".numbers");
    numbers.innerHTML = `Unmasked: ${one.says}. `;
    numbers.append(`Now: `);
    const now = document.createElement("strong");
    now.innerHTML = at.predicted;
    numbers.append(
      now,
      `, ${one.followed} ${at.probability.toFixed(3)} (random masking ${one.random[step].toFixed(3)}).${p} ` +
        `This explanation: ACU ${one.acu.toFixed(3)}, RACU ${racu}. ${one.orders ?? ""}` +
        (one.left_out ? " The model reads no further than this; the rest of the text is left out." : ""),
    );
    const line = box.querySelector(".fm-at");
    const x = Number(line.dataset.left) + (Number(line.dataset.width) * step) / (one.steps.length - 1);
    line.setAttribute("x1", x);
    line.setAttribute("x2", x);
  });
}

async function take() {
  try {
    const row = await call(`/rows/${Number(by("row").value)}`);
    by("text").value = row.text;
    if (by("context")) by("context").value = row.context;
    say(`Its true ${row.what}: ${row.label}`);
  } catch (error) {
    say(error.message, true);
  }
}

by("question").addEventListener("submit", explain);
by("cancel").addEventListener("click", cancel);
addEventListener("pagehide", cancel);
by("take").addEventListener("click", take);
by("masking").addEventListener("input", draw);
by("level").addEventListener("change", draw);
