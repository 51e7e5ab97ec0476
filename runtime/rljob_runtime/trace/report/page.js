"use strict";
(() => {
  // Steps: a chooser shows one panel at a time.
  const select = document.getElementById("step");
  const panels = [...document.querySelectorAll("section.step")];
  const show = (step) => {
    panels.forEach((panel) => { panel.hidden = panel.dataset.step !== String(step); });
    if (select) select.value = String(step);
  };
  if (select) {
    select.addEventListener("change", () => show(select.value));
    document.querySelectorAll("[data-go]").forEach((button) => button.addEventListener("click", () => {
      const next = select.selectedIndex + Number(button.dataset.go);
      if (next >= 0 && next < select.options.length) show(select.options[next].value);
    }));
    document.querySelectorAll("a[data-step]").forEach((link) => link.addEventListener("click", () => show(link.dataset.step)));
  }

  // Time lines: the view box is the zoom.
  const SPAN = 1000;
  document.querySelectorAll(".lanes").forEach((lanes) => {
    const svg = lanes.querySelector("svg"), axis = lanes.querySelector(".axis");
    const seconds = Number(lanes.dataset.seconds), height = svg.viewBox.baseVal.height;
    let from = 0, width = SPAN, drag = null;
    const draw = () => {
      width = Math.min(SPAN, Math.max(SPAN / 500, width));
      from = Math.min(SPAN - width, Math.max(0, from));
      svg.setAttribute("viewBox", `${from} 0 ${width} ${height}`);
      const digits = Math.max(0, Math.ceil(-Math.log10(seconds * width / SPAN / 8)));
      axis.replaceChildren(...[0, 1, 2, 3, 4, 5, 6, 7, 8].map((part) => {
        const label = document.createElement("span");
        label.style.left = `${part * 12.5}%`;
        label.textContent = `${((from + width * part / 8) / SPAN * seconds).toFixed(digits)} s`;
        return label;
      }));
    };
    const place = (event) => (event.clientX - svg.getBoundingClientRect().left) / svg.clientWidth;
    svg.addEventListener("wheel", (event) => {
      event.preventDefault();
      const at = place(event), factor = event.deltaY > 0 ? 1.25 : 0.8;
      from += at * width * (1 - factor);
      width *= factor;
      draw();
    }, { passive: false });
    svg.addEventListener("pointerdown", (event) => { drag = place(event); svg.setPointerCapture(event.pointerId); });
    svg.addEventListener("pointermove", (event) => {
      if (drag === null) return;
      const at = place(event);
      from += (drag - at) * width;
      drag = at;
      draw();
    });
    svg.addEventListener("pointerup", () => { drag = null; });
    svg.addEventListener("dblclick", () => { from = 0; width = SPAN; draw(); });
    draw();
  });

  // What the model says: a box that searches it.
  const find = document.getElementById("find");
  if (find) {
    const said = [...document.querySelectorAll("#said > .said")], found = document.getElementById("found");
    const texts = said.map((each) => each.textContent.toLowerCase()), all = found.textContent;
    find.addEventListener("input", () => {
      const wanted = find.value.toLowerCase();
      said.forEach((each, index) => {
        each.hidden = !texts[index].includes(wanted);
        each.open = wanted !== "" && !each.hidden;
      });
      found.textContent = wanted === "" ? all : `${said.filter((each) => !each.hidden).length} of ${said.length} responses`;
    });
  }

  // Charts: the values under the pointer.
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);
  document.querySelectorAll("[data-hover]").forEach((chart) => {
    const svg = chart.querySelector("svg");
    let data = null, line = null;
    svg.addEventListener("pointermove", (event) => {
      data = data || JSON.parse(chart.dataset.hover);
      const box = svg.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
      let best = 0;
      data.px.forEach((x, index) => { if (Math.abs(x - at) < Math.abs(data.px[best] - at)) best = index; });
      if (!line) {
        line = document.createElementNS("http://www.w3.org/2000/svg", "line");
        line.setAttribute("class", "cursor");
        svg.append(line);
      }
      Object.entries({ x1: data.px[best], x2: data.px[best], y1: 10, y2: 186 }).forEach(([name, value]) => line.setAttribute(name, value));
      const rows = data.s.filter((series) => series[2][best] !== null).map((series) => `${series[0]}: ${series[2][best]} ${data.u}`);
      tip.textContent = [`${data.l} ${Math.round(data.x[best])}`, ...rows].join("\n");
      tip.hidden = false;
      tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
      tip.style.top = `${event.clientY + 14}px`;
    });
    svg.addEventListener("pointerleave", () => { tip.hidden = true; if (line) { line.remove(); line = null; } });
  });
})();
