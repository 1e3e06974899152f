// What the pages of a daemon and of a fleet share: asking and asking again, the view in the address, and how things look.

import {html, nothing, render} from './lit-html.js';

export {html, nothing};

/** The most rows of a table, unless it says otherwise. The server gives at most 200. */
export const ROWS = 100;

// The token is only in memory: a page that is loaded again has none.
let token = '';

/** An answer that is an error. */
class Refusal extends Error {
  constructor(path, status, body) {
    super(String(body?.error ?? body?.title ?? `the server answered ${status}`));
    this.path = path;
    this.status = status;
    // Of a hub: what kind of problem it is. Something before it gives none.
    this.type = body?.type;
  }
}

/** Asks the server that this page is from, and returns the JSON. */
export async function ask(path, {method = 'GET', signal} = {}) {
  const limit = AbortSignal.timeout(method === 'GET' ? 20_000 : 600_000);
  const answer = await fetch(path, {
    method,
    signal: signal ? AbortSignal.any([signal, limit]) : limit,
    headers: token ? {Authorization: `Bearer ${token}`} : {},
    credentials: 'omit',
    redirect: 'error',
  });
  const body = await answer.json().catch(() => null);
  if (!answer.ok || body === null) {
    throw new Refusal(path, answer.status, body);
  }
  return body;
}

/**
 * Shows a page, and keeps what it shows up to date.
 *
 * `paths(route)` names what is needed for a view, `view(route, data, page)` makes it. While the page is hidden nothing is asked; after
 * failures the next attempt comes later and later. `instead(error)` says whether the page asks for something else since an answer was this error.
 * `isMissed(error)` says whether the view shows this one: its value is null until the next answer.
 */
export function start({title, every, paths, view, footer = '', instead = () => false, isMissed = () => false}) {
  const root = document.querySelector('#page');
  let route = routeOf(location.hash);
  const data = {};
  let failures = 0;
  let error = null;
  let nextAt = 0;
  let timer = 0;
  let running = null;
  let isTokenShown = false;
  // What had the focus when the field for the token was opened.
  let opener = null;
  let said = '';

  async function round() {
    clearTimeout(timer);
    running?.abort();
    if (document.hidden) return;
    const control = new AbortController();
    running = control;
    const wanted = Object.entries(paths(route));
    const answers = wanted.map(async ([name, path]) => {
      const value = await ask(path, {signal: control.signal}).catch((refusal) => {
        if (!isMissed(refusal)) throw refusal;
        return null;
      });
      data[name] = {path, value, at: Date.now()};
    });
    const errors = (await Promise.allSettled(answers)).filter((one) => one.status === 'rejected').map(({reason}) => reason);
    if (control.signal.aborted) return;
    if (errors.some(instead)) {
      round();
      return;
    }
    const [failed] = errors;
    failures = failed ? failures + 1 : 0;
    error = failed ?? null;
    if (error?.status === 401) isTokenShown = true;
    const wait = Math.min(every * 2 ** Math.min(failures, 6), 120_000) * (1 + Math.random() / 5);
    nextAt = Date.now() + wait;
    timer = setTimeout(round, wait);
    draw();
  }

  const page = {
    again: round,
    /** Tells the reader, also one who does not see, what has happened. */
    say(text) {
      said = text;
      draw();
    },
    askToken() {
      opener = focused();
      isTokenShown = true;
      draw();
      root.querySelector('#token').focus();
    },
    /** Changes the view without a step in the browser's history, and asks a moment after the last change. */
    change(parameters) {
      route = {...route, parameters: {...route.parameters, ...parameters}};
      history.replaceState(null, '', hashOf(route));
      clearTimeout(timer);
      timer = setTimeout(round, 250);
      draw();
    },
  };

  function focused() {
    const {activeElement: element} = document;
    return {element, digest: element.dataset.digest};
  }

  /** Whether it is there, and has not become another approval: an element is used for what comes to be in its place. */
  const isSame = ({element, digest}) => element.isConnected && element.dataset.digest === digest;

  /** Closes the field for the token. The focus goes back to where it was. */
  function closeToken() {
    const before = opener;
    [opener, isTokenShown] = [null, false];
    draw();
    if (before && isSame(before)) before.element.focus();
  }

  function draw() {
    const before = focused();
    // An answer for another view is not shown; one for other parameters is, until the new one comes.
    const wanted = paths(route);
    const place = (path) => path.split('?')[0];
    const shown = {};
    for (const [name, path] of Object.entries(wanted)) {
      const known = data[name];
      if (known?.value !== undefined && place(known.path) === place(path)) shown[name] = known;
    }
    const ages = Object.values(shown).map((one) => Date.now() - one.at);
    const age = ages.length ? Math.max(...ages) / 1000 : null;
    // An answer that is late is as old as one that has failed.
    const old = age !== null && (error !== null || age * 1000 > 3 * every);
    document.title = title(shown);
    render(html`
      <a class="skip" href="#main" @click=${toMain}>To the content</a>
      <header>
        <h1><a href="#/">${title(shown)}</a></h1>
        <p class="age">${age === null ? 'Nothing has been read yet' : `As of ${brief(age)} ago`}</p>
        <button type="button" aria-expanded=${isTokenShown} @click=${() => (isTokenShown ? closeToken() : page.askToken())}>
          ${token ? 'Token ✓' : 'Token'}</button>
      </header>
      ${isTokenShown ? tokenField() : nothing}
      <p role="alert" class=${error ? 'banner' : 'none'}>${error ? wrong(old ? age : null) : nothing}</p>
      <p role="status" class=${said ? 'banner said' : 'none'}>${said || nothing}</p>
      <main id="main" tabindex="-1" class=${old ? 'old' : ''}>${view(route, shown, page)}</main>
      <footer><p>Read only${footer}. <kbd>/</kbd> goes to the filter.</p></footer>`, root);
    // Whoever works by keyboard does not begin at the top of the page when what had the focus is gone, and confirms nothing that has not been read.
    if (!isSame(before)) root.querySelector('#main').focus({preventScroll: true});
  }

  function wrong(age) {
    const left = Math.max(0, Math.round((nextAt - Date.now()) / 1000));
    const what = error.status ? error.message : 'The server does not answer';
    const shown = age === null ? '' : ` What is shown is ${brief(age)} old.`;
    return `${what}.${shown} Next attempt in ${left} s.`;
  }

  function tokenField() {
    const take = (event) => {
      event.preventDefault();
      token = event.target.elements.token.value.trim();
      event.target.reset();
      failures = 0;
      closeToken();
      round();
    };
    const escape = ({key}) => key === 'Escape' && closeToken();
    return html`<form class="token" aria-label="The token" @submit=${take} @keydown=${escape}>
      <label for="token">Token</label>
      <input id="token" name="token" type="password" autocomplete="off" spellcheck="false">
      <button type="submit">Use it</button>
      <span>It is kept in this page's memory until the page is closed or loaded again.</span>
    </form>`;
  }

  function toMain(event) {
    event.preventDefault();
    root.querySelector('#main').focus();
  }

  addEventListener('hashchange', () => {
    route = routeOf(location.hash);
    said = '';
    failures = 0;
    draw();
    root.querySelector('#main').focus();
    round();
  });
  document.addEventListener('visibilitychange', () => {
    if (!document.hidden) failures = 0;
    round();
  });
  document.addEventListener('keydown', (event) => {
    const isText = event.target.closest?.('input, textarea, select');
    const filter = root.querySelector('#filter');
    if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey || isText || !filter) return;
    event.preventDefault();
    filter.focus();
    filter.select();
  });
  // What is old says how old it is.
  setInterval(() => !document.hidden && draw(), 1000);
  draw();
  round();
}

/** `#/section/databases?state=failing` as its parts. */
function routeOf(hash) {
  const [path, query = ''] = hash.replace(/^#?\/?/, '').split('?');
  let parts = [];
  try {
    parts = path.split('/').filter(Boolean).map(decodeURIComponent);
  } catch {
    // An address that somebody has mistyped shows the first view.
  }
  return {parts, parameters: Object.fromEntries(new URLSearchParams(query))};
}

export function hashOf({parts, parameters = {}}) {
  return `#/${parts.map(encodeURIComponent).join('/')}${queryOf(parameters)}`;
}

/** The parameters that have a value. */
export function queryOf(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== '' && value !== null);
  const query = new URLSearchParams(given).toString();
  return query && `?${query}`;
}

// The word says it; the shape says it without colours, and the colour from afar.
const LOOKS = {
  good: ['●', 'ready', 'in_step', 'available', 'passed', 'current', 'applied', 'Complete', 'Current'],
  busy: ['◐', 'pending', 'deleting', 'starting', 'dry_run', 'detaching', 'running', 'progressing', 'Running', 'RollingBack',
    'Progressing'],
  quiet: ['○', 'paused', 'elsewhere', 'detached', 'existing', 'missing'],
  wait: ['■', 'held', 'waiting', 'not_ready', 'unclaimed', 'circle', 'other_cluster', 'mapping_changed', 'late', 'unknown', 'Unknown'],
  bad: ['▲', 'blocked', 'failing', 'unreachable', 'refused', 'no_credentials', 'unauthorized', 'not_applied', 'failed', 'Stopped', 'RolledBack',
    'Failed'],
};

export const words = (name) => String(name ?? '').replaceAll('_', ' ');

export function state(name) {
  const [look, [shape]] = Object.entries(LOOKS).find(([, names]) => names.includes(name)) ?? ['wait', ['◆']];
  return html`<span class="state ${look}"><span aria-hidden="true">${shape}</span> ${words(name)}</span>`;
}

/** Seconds in their largest unit, as the command line writes them. */
export function brief(seconds) {
  if (seconds === null || seconds === undefined) return '–';
  const whole = Math.floor(seconds);
  if (whole < 120) return `${whole}s`;
  if (whole < 7_200) return `${Math.floor(whole / 60)}m`;
  if (whole < 172_800) return `${Math.floor(whole / 3_600)}h`;
  return `${Math.floor(whole / 86_400)}d`;
}

export const number = (value) => (value === null || value === undefined ? '–' : value.toLocaleString('en'));

/**
 * A table. The first cell of a row is its heading. `columns` are `{head, cell, sort}`: `sort` is the name of the order that the server
 * knows, if it has one for the column, and `sorted` that of the order it has now. `more` is how many rows the server has not given, and
 * `where` says where those are that are not shown.
 */
export function table({caption, columns, rows, sorted, sort, most = ROWS, more = 0, where = 'not shown', empty = 'None.'}) {
  if (!rows.length) return html`<h3>${caption}</h3><p class="empty">${empty}</p>`;
  const hidden = Math.max(0, rows.length - most) + (more ?? 0);
  const head = (column) => {
    if (!column.sort) return html`<th scope="col">${column.head}</th>`;
    const is = column.sort === sorted;
    return html`<th scope="col" aria-sort=${is ? 'other' : nothing}>
      <button type="button" @click=${() => sort(column.sort)}>${column.head}${is ? ' ▾' : ''}</button></th>`;
  };
  return html`<div class="scroll" role="region" tabindex="0" aria-label=${caption}><table>
    <caption>${caption}</caption>
    <thead><tr>${columns.map(head)}</tr></thead>
    <tbody>${rows.slice(0, most).map((row) => html`<tr>${columns.map(({cell}, place) =>
      place === 0 ? html`<th scope="row">${cell(row)}</th>` : html`<td>${cell(row)}</td>`)}</tr>`)}</tbody>
  </table></div>${hidden ? html`<p>${number(hidden)} more are ${where}.</p>` : nothing}`;
}

/** Counts by state, each of which selects its objects. */
export function counts({label, counts: all, selected, select}) {
  const shown = Object.entries(all).filter(([name, count]) => count > 0 || name === selected);
  return html`<div role="group" aria-label=${label} class="counts">
    <button type="button" aria-pressed=${!selected} @click=${() => select('')}>All</button>
    ${shown.map(([name, count]) => html`<button type="button" aria-pressed=${name === selected} @click=${() => select(name)}>
      ${state(name)} ${number(count)}</button>`)}
  </div>`;
}

export function filter({label, value, change}) {
  return html`<p class="filter"><label for="filter">${label}</label>
    <input id="filter" type="search" autocomplete="off" spellcheck="false" .value=${value ?? ''}
      @input=${(event) => change(event.target.value)}></p>`;
}

/**
 * What comes before and after the rows that `text` names. `back` and `next` are null where there is nothing: such a button does nothing, and
 * keeps the focus for the next page.
 */
export function pager({text, back, next, backTo = 'Previous'}) {
  return html`<nav aria-label="Pages" class="pager">
    <button type="button" aria-disabled=${!back} @click=${back}>${backTo}</button>
    <span>${text}</span>
    <button type="button" aria-disabled=${!next} @click=${next}>Next</button>
  </nav>`;
}

const WIDTH = 240;
const HEIGHT = 40;
/** Lines of the table of a plot. */
const LINES = 12;

/**
 * A plot of the last hour with a sentence and a table. `times` are in seconds, and `values` may have holes. What is older than the first
 * sample is empty: the process has started since.
 */
export function plot({name, times, values, span, step, format = number}) {
  const known = values.filter((value) => value !== null && value !== undefined);
  if (!known.length) return nothing;
  const [least, most, last] = [Math.min(...known), Math.max(...known), known.at(-1)];
  const [end, covered] = [times.at(-1), times.at(-1) - times[0]];
  const range = least === most ? `all the time` : `between ${format(least)} and ${format(most)}`;
  const sentence = `${name}: ${format(last)}, ${range} in the last ${brief(covered)}.`;
  const top = Math.max(most, 1e-9);
  let [path, isOpen, before] = ['', false, 0];
  times.forEach((time, place) => {
    const value = values[place];
    if (value === null || value === undefined) {
      isOpen = false;
      return;
    }
    const x = WIDTH - ((end - time) / span) * WIDTH;
    const y = HEIGHT - 2 - (Math.max(value, 0) / top) * (HEIGHT - 4);
    // A step that is missing, as after a suspension, is a gap.
    path += `${isOpen && time - before < 2.5 * step ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`;
    // A sample by itself is a dot.
    if (!isOpen) path += 'h.1';
    [isOpen, before] = [true, time];
  });
  const stride = Math.max(1, Math.ceil(times.length / LINES));
  const lines = times.map((time, place) => [time, values[place]]).filter((_, place) => (times.length - 1 - place) % stride === 0);
  return html`<figure>
    <figcaption>${sentence}</figcaption>
    <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label=${sentence} preserveAspectRatio="none"><path d=${path}></path></svg>
    <details><summary>${name} as a table</summary>
      <table><caption class="hidden">${name}</caption>
        <thead><tr><th scope="col">Ago</th><th scope="col">${name}</th></tr></thead>
        <tbody>${lines.map(([time, value]) => html`<tr><th scope="row">${brief(end - time)}</th><td>${format(value)}</td></tr>`)}</tbody>
      </table></details>
  </figure>`;
}
