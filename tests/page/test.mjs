// The pages in a browser: a daemon serves its real files with its real headers, and the JSON of most scenes is scripted. It has only keys of
// answers.json, all of which the integration tests find in what real daemons say (integration/src/page.rs).
//
// In every scene: no request to another host, no violation of the policy, no error in the console, no finding of axe in light and dark, at most
// 3,000 nodes, Tab reaches all that can be operated, and on a phone nothing but tables is wider than the screen. The last scenes are those of a real
// hub, on the database of PAGE_DATABASE.

import assert from 'node:assert/strict';
import {spawn} from 'node:child_process';
import {mkdtempSync, readFileSync, writeFileSync} from 'node:fs';
import {createServer} from 'node:net';
import {createRequire} from 'node:module';
import {tmpdir} from 'node:os';
import {join} from 'node:path';

const [binary, screenshots] = process.argv.slice(2);
const require = createRequire(join(process.env.PAGE_MODULES, 'x.js'));
const {chromium} = require('playwright-core');
const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
const ui = (name) => readFileSync(new URL(`../../src/ui/${name}`, import.meta.url), 'utf8');

const known = JSON.parse(readFileSync(new URL('answers.json', import.meta.url), 'utf8'));

const EVIL = '<img src=x onerror="document.title=1">';
const MOST_NODES = 3_000;
const PHONE = {width: 360, height: 740};
const SCREEN = {width: 1280, height: 900};

async function freePort() {
  const server = createServer().listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  const {port} = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

const folder = mkdtempSync(join(tmpdir(), 'towline-page-'));
const write = (name, text) => (writeFileSync(join(folder, name), text), join(folder, name));
const port = await freePort();
// Nothing listens there.
const kubeconfig = (name, server) => write(name, JSON.stringify({
  apiVersion: 'v1', kind: 'Config', 'current-context': 'c',
  clusters: [{name: 'c', cluster: {server}}],
  contexts: [{name: 'c', context: {cluster: 'c', user: 'u'}}],
  users: [{name: 'u', user: {token: 't'}}],
}));
const [hub, edge] = [kubeconfig('hub', `http://127.0.0.1:${await freePort()}`), kubeconfig('edge', `http://127.0.0.1:${await freePort()}`)];
const config = write('towline.toml', `
[daemon]
listen = "127.0.0.1:${port}"
admin_token_file = ${JSON.stringify(write('token', 'sesame'))}
[clusters.hub]
kubeconfig = ${JSON.stringify(hub)}
[clusters.edge]
kubeconfig = ${JSON.stringify(edge)}
[[sync]]
name = "databases"
remote = "hub"
local = "edge"
resource = "databases.v1.demo.towline.dev"
namespace_prefix = "west-"
finalizer = "sync-west"
`);
let daemon;
const base = `http://127.0.0.1:${port}`;

/** A process of the binary, which answers there. */
async function run(file, address, path) {
  const child = spawn(binary, ['run', '--config', file], {stdio: ['ignore', 'ignore', 'inherit'], env: {...process.env, RUST_LOG: 'off'}});
  for (let attempt = 0; ; attempt += 1) {
    const answer = await fetch(`${address}${path}`).catch(() => null);
    if (answer?.ok) return child;
    assert.ok(attempt < 300 && child.exitCode === null, `${address}${path} answers`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

async function end(child) {
  const ended = new Promise((resolve) => child.once('exit', resolve));
  child.kill('SIGKILL');
  await ended;
}

const startDaemon = async () => (daemon = await run(config, base, '/healthz'));
const stopDaemon = () => end(daemon);

let hubDaemon;
const hubPort = await freePort();
const hubBase = `http://127.0.0.1:${hubPort}`;

/** A hub with these sections beside `[hub]`, with everybody's rights for whoever is on this machine. */
async function startHub(sections) {
  const file = write('hub.toml', `
[daemon]
listen = "127.0.0.1:${await freePort()}"
[hub]
listen = "127.0.0.1:${hubPort}"
database_url_file = ${JSON.stringify(write('database', process.env.PAGE_DATABASE))}
${sections}`);
  hubDaemon = await run(file, hubBase, '/v1/clusters');
}

async function post(path, document) {
  const answer = await fetch(`${hubBase}${path}`, {method: 'POST', headers: {'content-type': 'application/json'}, body: JSON.stringify(document)});
  assert.equal(answer.status, 201, `${path}: ${await answer.text()}`);
}

const STATES = ['in_step', 'pending', 'paused', 'failing', 'deleting', 'held', 'unclaimed', 'existing', 'mapping_changed', 'circle',
  'other_cluster', 'missing', 'unreachable'];
const zero = Object.fromEntries(STATES.map((state) => [state, 0]));

const listed = (number, more = {}) => ({
  key: `west-shop/orders-${String(number).padStart(4, '0')}`, state: 'failing', for_seconds: 130 + number,
  cause: 'spec.storage: must be a whole number of Gi', next_step: 'change it on the hub', retry: 'on change', retry_in_seconds: 40, ...more,
});

function section(changes = {}) {
  return {
    job: 'sync', state: 'ready', well: true, message: '', readiness: {state: 'ready'},
    overview: {flow: 'hub→west', subject: 'databases', total: 40, in_step: 40, oldest_seconds: null},
    objects: {...zero, in_step: 40}, not_in_step: [], ...changes,
  };
}

const status = (sections, clusters = {}) => ({
  version: '0.1.0', started_seconds_ago: 4_000, sections, tree: {name: 'towline', state: 'running', restarts: 0, children: [
    {name: 'cluster hub', state: 'running', restarts: 1, children: [
      {name: 'session', state: 'running', restarts: 1, mailbox: {depth: 2, capacity: 9}}]}]},
  clusters: {hub: {state: 'available', since_seconds: 3_999, reason: null}, west: {state: 'available', since_seconds: 3_998, reason: null}, ...clusters},
});

/** Of the clusters, or of a section, which another replica ran in between. */
function history(url) {
  const times = Array.from({length: 240}, (_, place) => 1_800_000_000 + 15 * place).filter((_, place) => place < 90 || place > 110);
  const wave = times.map((_, place) => 40 - (place % 7));
  const maybe = wave.map((value, place) => (place % 50 ? value : null));
  const elsewhere = (values) => values.map((value, place) => (place < 20 || place > 40 ? value : null));
  const section = {in_step: elsewhere(wave), failing: elsewhere(wave.map((value) => 40 - value)), oldest_seconds: elsewhere(maybe), writes: maybe,
    delay_seconds: maybe.map((value) => value && value / 1_000)};
  const clusters = {hub: {requests: maybe, errors: wave.map(() => 0)}, west: {requests: maybe, errors: wave}};
  return {step_seconds: 15, window_seconds: 3_600, times, ...(url.pathname.startsWith('/history/') ? {section} : {clusters})};
}

/** What answers wait for, while a scene looks at what is shown before they come. */
let gate = null;
function hold() {
  let release;
  gate = new Promise((resolve) => (release = resolve));
  return () => ((gate = null), release());
}

/** 5,000 objects, of which the server gives pages. */
async function objects(url) {
  await gate;
  const get = (name) => url.searchParams.get(name) ?? '';
  const [offset, limit] = [Number(get('offset')), Number(get('limit'))];
  assert.ok(limit >= 1 && limit <= 200, `a limit of ${limit}`);
  let all = Array.from({length: 5_000}, (_, number) => listed(number, number === 0 ? {key: `west-shop/${EVIL}`, cause: EVIL} : {}));
  all = all.filter(({key, state}) => key.includes(get('text')) && (!get('state') || state === get('state')));
  return {total: 5_000, listed: 5_000, matching: all.length, offset, objects: all.slice(offset, offset + limit)};
}

const fleetStates = {paused: 3, unreachable: 40, failing: 200, held: 12, pending: 5, in_step: 4_740};
function fleet(url) {
  const by = url.searchParams.get('groupBy');
  const groups = by ? ['prod', 'test', undefined].map((value) => ({value, clusters: 9, states: {in_step: 9}})) : [];
  return {clusters: 5_000, states: fleetStates, groups, groupsMore: by ? 7 : 0, heldMore: 0,
    held: [{syncset: 'SelectorSyncSet monitoring', clusters: 12, reason: 'most of its objects there would be deleted', nextStep: 'take the change back'}]};
}
async function fleetClusters(url) {
  await gate;
  const get = (name) => url.searchParams.get(name) ?? '';
  const from = get('continue') ? Number(get('continue').split('c')[1]) + 1 : 0;
  const one = (number) => ({namespace: 'team-a', name: `c${number}`, labels: {env: 'prod'}, state: get('state') || 'in_step', forSeconds: 90,
    failing: 1, syncset: 'SyncSet team-a/base', reason: 'Rejected', message: EVIL, ...(get('syncset') && {outcome: get('outcome') || 'current'})});
  if (get('outcome') === 'failed') return {items: [one(3), one(4)]};
  return {items: Array.from({length: Number(get('limit'))}, (_, place) => one(from + place)), continue: `team-a/c${from + Number(get('limit')) - 1}`};
}
const failures = {total: 3, items: [
  {kind: 'SyncSet', namespace: 'team-a', name: 'base', reason: 'Rejected', message: EVIL, count: 200, clusters: [{namespace: 'team-a', name: 'c1'}]},
  {kind: 'SelectorSyncSet', name: 'monitoring', reason: 'Forbidden', message: 'no', count: 3, clusters: []},
  {kind: 'SyncSet', namespace: 'team-a', name: 'shop', health: 'Failed', reason: 'CrashLoopBackOff', message: EVIL, count: 7, clusters: []}]};
const rollout = (changes = {}) => ({kind: 'SelectorSyncSet', name: 'ingress', state: 'Running', reason: 'AwaitingPromotion',
  message: 'wave canary is done, and waits to be promoted', revision: 2, stable: 1, newest: 2, wave: 'canary', since: '2027-01-15T08:00:03Z', forSeconds: 900,
  nextStep: '`towline rollout promote ingress canary`', commands: ['pause', 'promote', 'abort', 'undo'], ...changes});
const stopped = rollout({kind: 'SyncSet', namespace: 'team-a', name: 'shop', state: 'Stopped', reason: 'Failures',
  message: 'in wave canary 1 of 3 clusters has failed', nextStep: 'edit the syncset, or `towline rollout undo team-a/shop`'});
const rollouts = {more: 0, items: [stopped, rollout(), rollout({name: 'done', state: 'Complete', reason: undefined, message: undefined,
  wave: undefined, nextStep: undefined, stable: 2, commands: []})]};
const waves = [['canary', 'running', 3, 3, 3], ['tenth', 'waiting', 9, 0, 0], ['rest', 'waiting', 108, 0, 0]].map(([name, is, clusters, released, done]) =>
  ({name, state: is, clusters, released, done, failed: 0, away: name === 'rest' ? 2 : 0}));
const ingress = {kind: 'SelectorSyncSet', name: 'ingress', status: {health: {failed: 1, current: 110, unknown: 2, progressing: 7},
  rollout: {state: 'Running', reason: 'AwaitingPromotion', revision: 2, stable: 1, wave: 'canary'}}};
const fleetAnswers = {'/fleet/v1/fleet/clusters': fleetClusters, '/fleet/v1/fleet': fleet, '/fleet/v1/syncset-failures': () => failures,
  '/fleet/v1/rollouts': () => rollouts, '/fleet/v1/selectorsyncsets/ingress/rollout': () => rollout({waves}),
  '/fleet/v1/selectorsyncsets/ingress': () => ingress, '/fleet/v1/syncsets/team-a/shop': () => ({...ingress, kind: 'SyncSet', name: 'shop'}),
  '/fleet/v1/clustersyncs/': () => clusterSync};
const clusterSync = {kind: 'ClusterSync', status: {
  conditions: [{type: 'Failed', status: 'True', reason: 'Failure', message: EVIL, lastTransitionTime: '2027-01-15T08:00:03Z'}],
  syncSets: [{name: 'base', result: 'Failure', reason: 'Rejected', failureMessage: EVIL, lastTransitionTime: '2027-01-15T08:00:03Z',
    resourcesToDelete: [{apiVersion: 'v1', kind: 'ConfigMap', namespace: 'a', name: EVIL}]},
  {name: 'shop', result: 'Success', health: {state: 'Failed', reason: 'CrashLoopBackOff', message: EVIL},
    unhealthy: [{kind: 'Deployment', namespace: 'shop', name: EVIL}],
    resourcesToDelete: [{apiVersion: 'v1', kind: 'ConfigMap', namespace: 'a', name: EVIL}], resourcesToDeleteOmitted: 4}],
  selectorSyncSets: [{name: 'monitoring', result: 'Success', health: {state: 'Current'}}]}};

// What a scene answers: a function of the URL and the request, by the beginning of a path. What it has none for the daemon answers.
let answers = {};
const problems = [];

/** The examples for a path of a daemon or a hub. */
function examplesFor(path) {
  const place = path.replace('/fleet/v1/', '/v1/').replace('/selectorsyncsets/', '/syncsets/').replace(/^(\/v1\/syncsets)\/[^/]+(\/rollout)?$/, '$1$2');
  // The longest name that it begins with.
  const [name] = Object.keys(known).filter((one) => place.startsWith(one)).sort((one, other) => other.length - one.length);
  return Object.values(known[name] ?? {});
}

/** The keys of a value that no example has in its place. */
function strange(value, examples, path = '') {
  if (Array.isArray(value)) {
    const items = examples.filter(Array.isArray).flat();
    return value.flatMap((item) => strange(item, items, path));
  }
  if (value === null || typeof value !== 'object') return [];
  const objects = examples.filter((example) => example !== null && typeof example === 'object');
  return Object.entries(value).flatMap(([key, inner]) => {
    // Syncsets of both kinds have the same entries.
    const found = objects.flatMap((example) => ['*', key, ...(key === 'selectorSyncSets' ? ['syncSets'] : [])].filter((one) => one in example).map((one) => example[one]));
    return found.length ? strange(inner, found, `${path}/${key}`) : [`${path}/${key}`];
  });
}
const asked = [];

const browser = await chromium.launch({executablePath: process.env.CHROMIUM, args: process.getuid() === 0 ? ['--no-sandbox'] : []});
const context = await browser.newContext({viewport: SCREEN});
const page = await context.newPage();
const allowed = [];
page.on('console', (message) => {
  const text = message.text();
  if (message.type() === 'error' && !allowed.some((part) => text.includes(part))) problems.push(`console: ${text}`);
});
page.on('pageerror', (error) => problems.push(`error: ${error.message}`));
await page.addInitScript(() => document.addEventListener('securitypolicyviolation', (event) =>
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`)));
await startDaemon();
const {headers: pageHeaders} = await fetch(`${base}/ui/`);
await page.route('**/*', async (route) => {
  const request = route.request();
  const url = new URL(request.url());
  if (![base, hubBase].includes(url.origin)) {
    problems.push(`a request to ${url}`);
    return route.abort();
  }
  asked.push(`${request.method()} ${url.pathname}${url.search}`);
  // The fleet's page is a hub's; its files are given with the same headers.
  if (['/fleet/ui/', '/fleet/ui/fleet.js'].includes(url.pathname)) {
    const name = url.pathname.endsWith('.js') ? 'fleet.js' : 'fleet.html';
    const headers = Object.fromEntries(pageHeaders);
    headers['content-type'] = name.endsWith('.js') ? 'text/javascript' : 'text/html';
    delete headers['content-length'];
    return route.fulfill({body: ui(name), headers});
  }
  if (url.pathname.startsWith('/fleet/ui/')) return route.continue({url: `${base}${url.pathname.replace('/fleet', '')}`});
  if (url.origin === hubBase) return route.continue();
  const key = Object.keys(answers).find((path) => url.pathname.startsWith(path));
  if (!key) return route.continue();
  const answer = await answers[key](url, request);
  // A hub answers with a problem.
  if (answer.refused) return route.fulfill({status: answer.refused, json: {type: answer.type, [url.pathname.startsWith('/fleet/') ? 'title' : 'error']: answer.error}});
  // As the page gets it: without what is undefined.
  const unknown = strange(JSON.parse(JSON.stringify(answer)), examplesFor(url.pathname));
  if (unknown.length) problems.push(`${url.pathname}: no daemon says ${unknown.join(' ')}`);
  return route.fulfill({json: answer});
});

/** Tab goes once through all that can be operated, in the order of the page, and shows where it is. */
async function tabThrough(name) {
  await page.locator('.skip').focus();
  await page.evaluate(() => {
    const of = (element) => element.outerHTML.slice(0, 200);
    const seen = [document.activeElement];
    const faults = [];
    const visit = ({target}) => {
      if (!(seen.at(-1).compareDocumentPosition(target) & Node.DOCUMENT_POSITION_FOLLOWING)) faults.push(`behind ${of(seen.at(-1))}: ${of(target)}`);
      if (getComputedStyle(target).outlineStyle === 'none') faults.push(`not shown: ${of(target)}`);
      seen.push(target);
    };
    const all = [...document.querySelectorAll('a[href], button, input, summary, [tabindex="0"]')].filter((element) => element.checkVisibility());
    document.addEventListener('focusin', visit);
    window.tabbed = {
      faults,
      left: () => all.filter((element) => element.isConnected && !seen.includes(element)).map(of),
      end: () => document.removeEventListener('focusin', visit),
    };
  });
  const left = () => page.evaluate(() => window.tabbed.left());
  let before = Infinity;
  for (let more = await left(); more.length > 0; more = await left()) {
    assert.ok(more.length < before, `${name}: Tab does not reach ${more.join(' ')}`);
    before = more.length;
    for (const _ of more) await page.keyboard.press('Tab');
  }
  assert.deepEqual(await page.evaluate(() => (window.tabbed.end(), window.tabbed.faults)), [], `${name}, by Tab`);
  await page.locator('#main').focus();
}

const hasFocus = (locator) => locator.and(page.locator(':focus')).waitFor();

/** Goes there by Tab, or by Shift and Tab if it is behind. */
async function tabTo(locator) {
  const key = () => locator.evaluate((element) => {
    const {activeElement: at} = document;
    return at === element ? null : at.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_PRECEDING ? 'Shift+Tab' : 'Tab';
  });
  let presses = 0;
  for (let next = await key(); next; next = await key()) {
    assert.ok((presses += 1) < 500, `Tab does not lead to ${locator}`);
    await page.keyboard.press(next);
  }
}
async function press(locator) {
  await locator.waitFor();
  await tabTo(locator);
  await page.keyboard.press('Enter');
}

async function look(name) {
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({colorScheme});
    // Through the debugger, which the page's policy does not concern.
    const found = await page.evaluate(`(() => { ${axe}; return axe.run(document, {resultTypes: ['violations']}); })()`);
    const told = found.violations.map(({id, help, nodes}) => `${id}: ${help}: ${nodes.slice(0, 3).map(({html}) => html).join(' ')}`);
    assert.deepEqual(told, [], `axe, ${name}, ${colorScheme}`);
    if (screenshots) await page.screenshot({path: join(screenshots, `${name}-${colorScheme}.png`), fullPage: false});
  }
  await page.setViewportSize(PHONE);
  const wide = await page.evaluate(() => [...document.querySelectorAll('body *')].filter((element) => !element.closest('.scroll table, .skip, .hidden')
    && element.getBoundingClientRect().right > innerWidth + 0.5).map((element) => element.outerHTML.slice(0, 200)));
  const width = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.deepEqual([width, wide.slice(0, 3)], [PHONE.width, []], `${name}, on a phone`);
  await page.setViewportSize(SCREEN);
  const nodes = await page.evaluate(() => document.querySelectorAll('*').length);
  assert.ok(nodes <= MOST_NODES, `${name} has ${nodes} nodes`);
  assert.equal(await page.locator('img').count(), 0, 'no text has become markup');
  await tabThrough(name);
  assert.deepEqual(problems, [], name);
  console.log(`ok ${name} (${nodes} nodes)`);
}

async function open(hash, path = '/ui/', of = base) {
  // Another document each time: nothing of the scene before is left.
  await page.goto('about:blank');
  await page.goto(`${of}${path}${hash}`);
}
const text = (what) => page.getByText(what).first().waitFor();

try {
  // The daemon's own answers, with clusters that do not answer.
  await open('');
  await text('clusters can\'t be used.');
  await page.getByRole('table', {name: 'Clusters'}).getByText('unreachable').first().waitFor();
  await look('clusters-down');

  answers = {'/status': () => status({databases: section()}), '/history': history};
  await open('');
  await text('1 of 1 sections are well.');
  await text('Errors of west: ');
  await look('healthy');

  const silent = {west: {state: 'unreachable', since_seconds: 130, reason: 'connection refused (192.0.2.1:6443)'}};
  const waiting = section({state: 'waiting', well: false, message: 'waits for west', objects: {...zero, unreachable: 40},
    overview: {...section().overview, in_step: 0, oldest_seconds: 130}});
  answers = {'/status': () => status({databases: waiting}, silent), '/history': history};
  await open('');
  await text('1 of 2 clusters can\'t be used.');
  await text('connection refused (192.0.2.1:6443)');
  await look('edge-down');

  // 5,000 objects that fail, one with a name that would be markup.
  const failing = section({state: 'failing', well: false, message: EVIL, not_in_step: Array.from({length: 50}, (_, number) => listed(number)),
    not_in_step_more: 4_950, objects: {...zero, failing: 5_000}});
  answers = {'/status': () => status({databases: failing}), '/history': history, '/objects/': objects};
  await open('');
  await text('4,950 more are on the pages');
  await look('failures');
  // By keyboard alone: to the section, into its filter, to the next page.
  await page.getByRole('link', {name: 'databases'}).first().focus();
  await page.keyboard.press('Enter');
  await text('1–100 of 5,000');
  await text(`west-shop/${EVIL}`);
  await look('objects');
  // The column of a plot has a gap while another replica ran the section: two lines beside that of the times that are missing.
  const path = await page.locator('figure', {hasText: 'Oldest change: '}).locator('path').first().getAttribute('d');
  const lines = path.split('M').length - 1;
  const inStep = await page.locator('figure', {hasText: 'In step: '}).locator('path').first().getAttribute('d');
  assert.deepEqual([inStep.split('M').length - 1, lines], [3, 3], inStep);
  let release = hold();
  const [next, previous] = [page.getByRole('button', {name: 'Next'}), page.getByRole('button', {name: 'Previous'})];
  await press(next);
  // Until the next rows come, the numbers are those of the rows that are shown.
  await page.waitForURL(/offset=100/);
  assert.ok(await page.getByText('1–100 of 5,000').isVisible());
  release();
  await text('101–200 of 5,000');
  // A button that has nothing to do any more still has the focus.
  await page.keyboard.press('Shift+Tab');
  await page.keyboard.press('Enter');
  await text('1–100 of 5,000');
  await hasFocus(previous.and(page.locator('[aria-disabled=true]')));
  await page.keyboard.press('/');
  await page.keyboard.type('orders-0042');
  await text('1–1 of 1');
  assert.equal(await page.locator('#filter').inputValue(), 'orders-0042');
  assert.ok(page.url().includes('text=orders-0042'), page.url());
  await page.keyboard.press('Escape');
  await text('1–100 of 5,000');

  // What is held, by keyboard alone: without the token, with a wrong one, and with the right one.
  const held = section({state: 'held', well: false, message: '2 deletions wait for `towline approve databases`', objects: {...zero, held: 2, in_step: 38}});
  const changes = [{key: 'west-shop/a', kind: 'delete', reason: 'gone from the hub'}, {key: EVIL, kind: 'delete', reason: EVIL}];
  let approved = 0;
  answers = {
    '/status': () => status({databases: held}), '/history': history, '/objects/': objects,
    '/held/': () => ({because: null, objects: approved ? [] : changes, digest: `of ${changes.length}`}),
    '/approve/': async (url, request) => {
      assert.equal(request.method(), 'POST');
      assert.equal(url.searchParams.get('digest'), 'of 2', 'what was shown is what is approved');
      const given = request.headers().authorization;
      if (!given) return {refused: 401, error: 'changes need the admin token: --token-file FILE'};
      if (given !== 'Bearer sesame') return {refused: 401, error: 'wrong admin token'};
      approved += 1;
      await gate;
      return {approved: 2, remembered: true};
    },
  };
  allowed.push('401');
  await open('');
  const [main, field] = [page.locator('#main'), page.locator('#token')];
  const wanted = page.getByRole('link', {name: 'What an approval of databases would do'});
  await wanted.waitFor();
  // The first stop leads past what is above the content.
  await page.keyboard.press('Tab');
  await hasFocus(page.getByRole('link', {name: 'To the content'}));
  await page.keyboard.press('Enter');
  await hasFocus(main);
  await press(wanted);
  await text('these 2 changes');
  await hasFocus(main);
  await look('held');
  const approve = page.getByRole('button', {name: 'Approve these 2 changes of databases'});
  await press(approve);
  await text('databases is not approved: changes need the admin token');
  await hasFocus(field);
  await look('held-token');
  // Escape forgets what was typed, and leads back to where the token was asked for.
  await page.keyboard.press('Shift+Tab');
  await tabTo(field);
  await page.keyboard.type('sesame');
  await page.keyboard.press('Escape');
  await field.waitFor({state: 'detached'});
  await hasFocus(approve);
  await page.keyboard.press('Enter');
  await hasFocus(field);
  assert.equal(await field.inputValue(), '');
  await page.keyboard.type('open');
  await page.keyboard.press('Enter');
  await hasFocus(approve);
  await page.keyboard.press('Enter');
  await text('databases is not approved: wrong admin token');
  await hasFocus(field);
  await page.keyboard.type('sesame');
  await page.keyboard.press('Enter');
  await hasFocus(approve);
  assert.equal(approved, 0);
  release = hold();
  await page.keyboard.press('Space');
  await text('Approving databases …');
  await page.keyboard.press('Space');
  release();
  await text('databases: 2 changes are approved; a restart remembers that.');
  await text('Nothing is held.');
  assert.equal(approved, 1, 'once, however often it was pressed');
  // The button is gone; Tab goes on in the content.
  await hasFocus(main);
  await look('approved');
  // The button for the token opens the field and closes it.
  const toggle = page.getByRole('button', {name: 'Token'});
  await press(toggle);
  await hasFocus(field);
  await page.keyboard.press('Escape');
  await hasFocus(toggle);
  const kept = await page.evaluate(() => [document.cookie, localStorage.length, sessionStorage.length]);
  assert.deepEqual(kept, ['', 0, 0]);

  // What is held is replaced by as much of something else while the token is asked for: no press approves what has not been read.
  let [version, sent] = ['one', []];
  answers = {
    '/status': () => status({databases: held}), '/history': history,
    '/held/': () => ({because: null, digest: version, objects: changes.map((change) => ({...change, key: `west-shop/${version}`}))}),
    '/approve/': (url, request) => {
      if (!request.headers().authorization) return {refused: 401, error: 'changes need the admin token'};
      sent.push(url.searchParams.get('digest'));
      return {approved: 2, remembered: true};
    },
  };
  const shows = async (other) => ((version = other), text(`west-shop/${other}`));
  const changed = 'databases is not approved: what is held has changed since the button was pressed.';
  await open('#/approve/databases');
  await press(approve);
  await hasFocus(field);
  await shows('two');
  await page.keyboard.type('sesame');
  await page.keyboard.press('Enter');
  await hasFocus(main);
  await page.keyboard.press('Enter');
  // The pointer is still where the button is: the first press only says so.
  await approve.click();
  await text(changed);
  assert.deepEqual(sent, []);
  await approve.click();
  await text('databases: 2 changes are approved');
  assert.deepEqual(sent, ['two']);
  await shows('three');
  // It changes between the beginning and the end of a press.
  await approve.hover();
  await page.mouse.down();
  await shows('four');
  await page.mouse.up();
  await text(changed);
  await approve.click();
  await text('databases: 2 changes are approved');
  assert.deepEqual(sent, ['two', 'four']);

  // Of syncsets each is approved by itself, unless an approval does not help it.
  const unreadable = {key: 'SyncSet team-a/odd', kind: 'unreadable', reason: 'upgrade all replicas, or write the document again'};
  let names = [];
  answers = {
    '/status': () => status({syncsets: {...held, job: 'syncsets'}}), '/history': history,
    '/held/': () => ({because: null, digest: `without ${names}`, objects: [...['base', 'shop'].filter((name) => !names.includes(name))
      .map((name) => ({key: `SelectorSyncSet ${name}`, kind: 'many', reason: 'most'})), unreadable]}),
    '/approve/': (url) => (names.push(url.searchParams.get('name')), {approved: [{syncset: 'SelectorSyncSet base'}]}),
  };
  await open('#/approve/syncsets');
  await text('An approval does not help');
  assert.equal(await page.getByRole('button', {name: /^Approve/}).count(), 3);
  await page.getByRole('button', {name: 'Approve these 2 changes of syncsets'}).waitFor();
  await look('held-syncsets');
  await press(page.getByRole('button', {name: 'Approve SelectorSyncSet base'}));
  await text('deletions approved: SelectorSyncSet base');
  await page.getByRole('button', {name: 'Approve this change of syncsets'}).waitFor();
  // The next one is in its place, and does not get its focus: whoever presses twice approves nothing else.
  await hasFocus(main);
  await page.keyboard.press('Enter');
  await tabTo(page.getByRole('button', {name: 'Approve SelectorSyncSet shop'}));
  assert.deepEqual(names, ['base']);

  // The daemon is gone, and back.
  allowed.push('ERR_CONNECTION_REFUSED');
  answers = {};
  await open('');
  await text('clusters can\'t be used.');
  await stopDaemon();
  await text('The server does not answer. What is shown is');
  await page.locator('main.old').waitFor();
  await look('gone');
  await startDaemon();
  await page.locator('main:not(.old)').waitFor();
  assert.equal(await page.getByRole('alert').innerText(), '');

  // The fleet: first nothing is wrong.
  const nothingFails = {...fleet(new URL(base)), held: [], states: {...Object.fromEntries(Object.keys(fleetStates).map((name) => [name, 0])), in_step: 5_000}};
  answers = {...fleetAnswers, '/fleet/v1/fleet': () => nothingFails, '/fleet/v1/syncset-failures': () => ({total: 0, items: []}),
    '/fleet/v1/rollouts': () => ({more: 0, items: []})};
  answers = {'/fleet/v1/fleet/clusters': fleetClusters, ...answers};
  await open('', '/fleet/ui/');
  await text('No syncset fails.');
  await text('team-a/c0 and 99 more');
  assert.equal(await page.getByRole('heading', {name: 'Rollouts'}).count(), 0);
  await look('fleet-healthy');
  answers = fleetAnswers;
  await open('#/?by=env', '/fleet/ui/');
  await text('5,000 clusters');
  await text('SelectorSyncSet monitoring');
  await text('7 more are not shown.');
  await look('fleet');
  // By keyboard alone from here on. What does not work, and what was not applied: the clusters of the latter can be selected.
  const ill = page.getByRole('table', {name: 'What fails or does not work'});
  await ill.getByRole('row', {name: /SyncSet team-a\/shop Failed 7 clusters of shop CrashLoopBackOff/}).waitFor();
  await page.getByRole('table', {name: 'Held deletions'}).getByRole('link', {name: '12 clusters of SelectorSyncSet monitoring'}).waitFor();
  await ill.getByRole('link', {name: '3 clusters of monitoring'}).waitFor();
  await press(page.getByRole('group', {name: 'Failures by state'}).getByRole('button', {name: /Failed/}));
  await ill.getByRole('row').nth(2).waitFor({state: 'detached'});
  assert.ok(page.url().includes('failures=Failed'), page.url());
  await press(page.getByRole('group', {name: 'Failures by state'}).getByRole('button', {name: 'All'}));
  // From those that do not work to the clusters on which they don't, and to the rest of these.
  await press(ill.getByRole('link', {name: '7 clusters of shop'}));
  const its = page.getByRole('table', {name: 'Its clusters'});
  await its.getByRole('row', {name: /^team-a\/c4 failed Rejected: .* in step$/}).waitFor();
  assert.equal(await its.getByRole('row').count(), 3);
  assert.ok(asked.includes('GET /fleet/v1/fleet/clusters?syncset=SyncSet%2Fteam-a%2Fshop&outcome=failed&limit=100'));
  await look('syncset');
  await press(page.getByRole('group', {name: 'Clusters by outcome'}).getByRole('button', {name: 'All'}));
  await text('team-a/c0 and 99 more');
  await press(next);
  await text('team-a/c100 and 99 more');
  await press(previous);
  await text('team-a/c0 and 99 more');
  await page.goBack();
  await text('SelectorSyncSet monitoring');
  // Only those that run, to the one that waits, and to the command that promotes it.
  const rolling = page.getByRole('table', {name: 'Rollouts'});
  await press(page.getByRole('group', {name: 'Rollouts by state'}).getByRole('button', {name: /Running/}));
  await rolling.getByRole('row').nth(2).waitFor({state: 'detached'});
  await press(rolling.getByRole('link', {name: 'towline rollout promote ingress canary'}));
  await page.getByRole('table', {name: 'Waves'}).getByRole('row', {name: 'rest waiting 108 0 0 0 2'}).waitFor();
  await page.getByRole('table', {name: 'Clusters by health'}).getByRole('row', {name: 'Failed 1'}).waitFor();
  await page.getByRole('table', {name: 'Commands'}).getByText('towline rollout promote ingress canary').waitFor();
  assert.equal(await page.getByRole('table', {name: 'Commands'}).getByRole('row').count(), 5);
  await look('rollout');
  await page.goBack();
  await text('SelectorSyncSet monitoring');
  await press(page.getByRole('group', {name: 'Clusters by state'}).getByRole('button', {name: /failing/}));
  // A second click before the next page has come does nothing, and the way back is that of the pages that were shown.
  // The rows of the filter have come.
  const isReady = page.locator('[aria-disabled=false]');
  await next.and(isReady).waitFor();
  release = hold();
  await press(next);
  await page.waitForURL(/after=team-a%2Fc99/);
  await page.keyboard.press('Enter');
  await hasFocus(next.and(page.locator('[aria-disabled=true]')));
  release();
  await text('team-a/c100 and 99 more');
  await next.and(isReady).waitFor();
  await page.keyboard.press('Enter');
  await text('team-a/c200 and 99 more');
  await previous.and(isReady).waitFor();
  await page.keyboard.press('Shift+Tab');
  await page.keyboard.press('Enter');
  await text('team-a/c100 and 99 more');
  // Loaded again, the page does not know what was before.
  await page.reload();
  await text('team-a/c100 and 99 more');
  await press(page.getByRole('button', {name: 'First page'}));
  await text('team-a/c0 and 99 more');
  await press(page.getByRole('table', {name: 'Clusters by name'}).getByRole('link', {name: 'team-a/c1', exact: true}));
  await text('SyncSet team-a/base');
  await page.getByRole('row', {name: /SyncSet team-a\/shop in step .* Failed CrashLoopBackOff: .* 4 more/}).waitFor();
  await look('cluster');
  await press(page.getByRole('group', {name: 'Syncsets by health'}).getByRole('button', {name: /Current/}));
  await page.getByRole('table', {name: 'Syncsets'}).getByRole('row').nth(2).waitFor({state: 'detached'});
  await page.getByRole('link', {name: 'SelectorSyncSet monitoring'}).waitFor();
  // As much as there can be of everything, with names that would be markup.
  const many = (count, one) => Array.from({length: count}, (_, number) => one(number));
  answers = {...fleetAnswers,
    '/fleet/v1/fleet': (url) => ({...fleet(url), groups: many(200, (value) => ({value: `${EVIL}${value}`, clusters: 6, states: fleetStates})),
      held: many(200, (number) => ({...fleet(url).held[0], syncset: `SelectorSyncSet ${EVIL}${number}`}))}),
    '/fleet/v1/syncset-failures': () => ({total: 500, items: many(100, (number) => ({...failures.items[0], name: `${EVIL}${number}`,
      clusters: many(5, (place) => ({namespace: 'team-a', name: `c${place}`}))}))}),
    '/fleet/v1/rollouts': () => ({more: 400, items: many(100, (number) => rollout({name: `${EVIL}${number}`, wave: EVIL, message: EVIL, nextStep: `\`${EVIL}\``}))})};
  answers = {'/fleet/v1/fleet/clusters': fleetClusters, ...answers};
  // Nothing is said of states, since not all were given, also if an address asks for one.
  await open('#/?by=version&rollout=Complete&failures=Failed', '/fleet/ui/');
  await text('475 more are listed by towline failures.');
  await text('475 more are listed by towline rollout status.');
  for (const name of ['Rollouts by state', 'Failures by state']) assert.equal(await page.getByRole('group', {name}).count(), 0);
  assert.equal(await page.getByRole('table', {name: 'Rollouts'}).getByRole('row').count(), 26);
  await text('team-a/c0 and 99 more');
  await look('fleet-full');
  // A syncset that is gone, or is not to be read: its clusters are shown.
  allowed.push('403');
  answers = {'/fleet/v1/selectorsyncsets/': () => ({refused: 403, type: 'urn:towline:problem:forbidden', error: 'this needs read in all namespaces'}), ...fleetAnswers};
  await open('#/syncset/SelectorSyncSet/ingress', '/fleet/ui/');
  await text('It is gone, or this token may not read it.');
  await page.getByRole('table', {name: 'Its clusters'}).getByRole('row', {name: /^team-a\/c4 /}).waitFor();
  assert.equal(await page.getByRole('alert').innerText(), '');
  await look('fleet-syncset-not-read');
  // The next answer is shown as it is, and so is that of a hub which something before it did not find.
  const askAgain = () => page.evaluate(() => document.dispatchEvent(new Event('visibilitychange')));
  answers = fleetAnswers;
  await askAgain();
  await page.getByRole('table', {name: 'Clusters by health'}).getByRole('row', {name: 'Failed 1'}).waitFor();
  allowed.push('404');
  answers = {'/fleet/v1/': () => ({refused: 404, error: 'default backend'})};
  await open('', '/fleet/ui/');
  await text('default backend.');
  answers = fleetAnswers;
  await askAgain();
  await text('5,000 clusters');
  allowed.pop();
  answers = {'/fleet/v1/': () => ({refused: 401, error: 'a token is required'})};
  await open('', '/fleet/ui/');
  await text('a token is required');
  await page.locator('#token').waitFor();
  await look('fleet-without-token');
  // With a wrong token, and with the right one, by keyboard.
  const guarded = (answer) => (url, request) => (request.headers().authorization === 'Bearer sesame' ? answer(url)
    : {refused: 401, error: 'the token is not known'});
  answers = Object.fromEntries(Object.entries(fleetAnswers).map(([place, answer]) => [place, guarded(answer)]));
  for (const [token, shown] of [['open', 'the token is not known'], ['sesame', '5,000 clusters']]) {
    await page.locator('#token').focus();
    await page.keyboard.type(token);
    await page.keyboard.press('Enter');
    await text(shown);
  }

  // A real hub: first without syncsets, so it knows no states, and no cluster is followed.
  answers = {};
  allowed.push('404');
  await startHub('');
  for (const name of ['east', 'west']) {
    await post('/v1/clusters', {namespace: 'team-a', name, labels: {env: 'prod'}, kubeconfig: readFileSync(edge, 'utf8')});
  }
  await open('', '/ui/', hubBase);
  await text('its configuration has no [syncsets]');
  await page.getByRole('table', {name: 'Documents of clusters'}).getByRole('row', {name: /^team-a\/west env=prod 20/}).waitFor();
  assert.equal(await page.getByRole('alert').innerText(), '');
  await page.locator('#filter').fill('team-b');
  await page.keyboard.press('Enter');
  await text('None is selected.');
  await look('fleet-without-syncsets');
  await end(hubDaemon);
  allowed.pop();
  await startHub('[syncsets]');
  await post('/v1/syncsets', {namespace: 'team-a', name: 'base', spec: {clusterDeploymentRefs: [{name: 'west'}]}});
  await open('', '/ui/', hubBase);
  // Nobody listens at its address, which is none that a document may have.
  const clusters = page.getByRole('table', {name: 'Clusters by name'});
  await clusters.getByRole('row', {name: /^team-a\/west unreachable/}).waitFor({timeout: 60_000});
  await text('2 clusters');
  await look('fleet-of-a-hub');
  await press(clusters.getByRole('link', {name: 'team-a/west'}));
  await page.getByRole('table', {name: 'Conditions'}).getByRole('row', {name: /^Unreachable True/}).waitFor();
  // It was tried nowhere.
  await open('#/syncset/SyncSet/team-a/base', '/ui/', hubBase);
  await text('Clusters on which it was tried');
  await text('none on this page');
  assert.equal(await page.getByRole('alert').innerText(), '');
  await look('syncset-of-a-hub');

  // Without scripts, a page says what shows the same.
  const plain = await browser.newPage({javaScriptEnabled: false});
  for (const [address, command] of [[base, 'towline status'], [hubBase, 'towline failures']]) {
    await plain.goto(`${address}/ui/`);
    assert.match(await plain.locator('body').innerText(), new RegExp(`This page needs JavaScript\\. .*${command}`));
  }
  await plain.close();

  // While nobody looks, nothing is asked. The clock is the page's own.
  answers = {'/status': () => status({databases: section()}), '/history': history};
  await page.clock.install();
  await open('');
  await text('1 of 1 sections are well.');
  const again = page.waitForRequest('**/status?*');
  await page.clock.runFor(10_000);
  await again;
  await page.evaluate(() => {
    Object.defineProperty(document, 'hidden', {value: true, configurable: true});
    document.dispatchEvent(new Event('visibilitychange'));
  });
  const before = asked.length;
  await page.clock.runFor(600_000);
  assert.equal(asked.length, before, 'a hidden page asks nothing');
  assert.deepEqual(problems, []);
} catch (error) {
  await page.screenshot({path: join(folder, 'failed.png')}).catch(() => {});
  console.error(`${error.stack}\nproblems: ${problems.join('\n')}\nscreenshot: ${join(folder, 'failed.png')}\n${await page.locator('body').innerText().catch(() => '')}`);
  process.exitCode = 1;
} finally {
  await browser.close();
  daemon.kill('SIGKILL');
  hubDaemon?.kill('SIGKILL');
}
