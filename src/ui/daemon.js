// The page of one daemon: what `towline status` and `towline approve` show.

import {ROWS, ask, brief, counts, filter, hashOf, html, nothing, number, pager, plot, queryOf, start, state, table, words} from './page.js';

/** The states of a section, the worst first. Unknown ones come before all of them. */
const STATES = ['blocked', 'held', 'refused', 'failing', 'not_ready', 'waiting', 'pending', 'paused', 'detaching', 'detached', 'dry_run',
  'elsewhere', 'ready'];
/** Most clusters whose requests are plotted, and most actors that are shown. */
const PLOTS = 12;
const ACTORS = 300;

const sectionLink = (name) => html`<a href=${hashOf({parts: ['section', name]})}>${name}</a>`;
const byRank = ([, one], [, other]) => STATES.indexOf(one.state) - STATES.indexOf(other.state);

function paths({parts: [view, name], parameters}) {
  const wanted = {status: '../status?latest=true'};
  if (!view) wanted.history = '../history';
  if (view === 'section') {
    wanted.history = `../history/${encodeURIComponent(name)}`;
    const {state: only, text, sort, offset} = parameters;
    wanted.objects = `../objects/${encodeURIComponent(name)}${queryOf({state: only, text, sort, offset, limit: ROWS})}`;
  }
  if (view === 'approve') wanted.held = `../held/${encodeURIComponent(name)}?limit=200`;
  return wanted;
}

function view(route, data, page) {
  const [place, name] = route.parts;
  if (!data.status) return html`<p>Reading …</p>`;
  const status = data.status.value;
  if (!place) return overview(status, data.history?.value);
  const section = status.sections[name];
  if (!section) return html`<h2>There is no section ${name}</h2><p><a href="#/">All sections</a></p>`;
  return place === 'approve' ? approval(name, section, data.held?.value, page) : sectionView(route, name, section, data, page);
}

function overview(status, history) {
  const sections = Object.entries(status.sections).sort(byRank);
  const clusters = Object.entries(status.clusters);
  const well = sections.filter(([, section]) => section.well).length;
  const silent = clusters.filter(([, cluster]) => cluster.state !== 'available').length;
  const listed = sections.flatMap(([name, section]) => section.not_in_step.map((object) => ({...object, section: name})));
  const more = sections.reduce((sum, [, section]) => sum + (section.not_in_step_more ?? 0), 0);
  return html`
    <h2>Now</h2>
    <p>${well} of ${sections.length} sections are well. ${silent ? `${silent} of ${clusters.length} clusters can't be used.` : 'All clusters answer.'}
      Towline ${status.version}, started ${brief(status.started_seconds_ago)} ago.</p>
    ${table({
      caption: 'Clusters',
      rows: clusters,
      columns: [
        {head: 'Cluster', cell: ([name]) => name},
        {head: 'State', cell: ([, cluster]) => state(cluster.state)},
        {head: 'For', cell: ([, cluster]) => brief(cluster.since_seconds)},
        {head: 'Reason', cell: ([, cluster]) => cluster.reason ?? ''},
      ],
    })}
    ${table({
      caption: 'Sections, the worst first',
      rows: sections,
      columns: [
        {head: 'Section', cell: ([name]) => sectionLink(name)},
        {head: 'Job', cell: ([, section]) => words(section.job)},
        {head: 'From → to', cell: ([, section]) => section.overview.flow},
        {head: 'Objects', cell: ([, section]) => section.overview.subject},
        {head: 'State', cell: ([, section]) => state(section.state)},
        {head: 'In step', cell: ([, {state: is, overview}]) => (is === 'elsewhere' ? '–' : inStep(overview) || '–')},
        {head: 'Oldest change', cell: ([, section]) => brief(section.overview.oldest_seconds)},
        {head: 'Why', cell: ([name, section]) => html`${section.message} ${approveLink(name, section)}`},
      ],
    })}
    ${objectTable('Objects that fail or wait', listed, {withSection: true, more, empty: 'None fails, and none waits for long.',
      where: 'on the pages of their sections'})}
    ${requests(history)}
    <h2>Actors</h2>
    <details><summary>The tree of actors</summary>${actors(status.tree)}</details>`;
}

/** How many objects are in step. A section may have none by its nature, as that of a hub. */
const inStep = ({in_step: some, total}) => (total ? `${number(some)} of ${number(total)}` : '');

const approveLink = (name, section) => (section.state === 'held' || section.objects.held || section.objects.other_cluster
  ? html`<a href=${hashOf({parts: ['approve', name]})}>What an approval of ${name} would do</a>` : nothing);

function objectTable(caption, rows, {withSection, ...rest}) {
  const {sort} = rest;
  const columns = [
    {head: 'Object', sort: sort && 'key', cell: (object) => object.key},
    {head: 'State', sort: sort && 'urgency', cell: (object) => state(object.state)},
    {head: 'For', sort: sort && 'age', cell: (object) => brief(object.for_seconds)},
    {head: 'Cause', cell: (object) => object.cause || '–'},
    {head: 'Next step', cell: next},
  ];
  if (withSection) columns.splice(1, 0, {head: 'Section', cell: (object) => sectionLink(object.section)});
  return table({caption, rows, columns, ...rest});
}

function next({next_step: step, retry, retry_in_seconds: left}) {
  const delay = left === undefined ? '' : `in ${brief(left)}`;
  const retried = retry || delay ? `retried ${[retry, delay].filter(Boolean).join(', else ')}` : '';
  return [step === 'none' ? '' : step, retried].filter(Boolean).join('; ') || '–';
}

function requests(history) {
  if (!history?.times.length) return nothing;
  const {times, window_seconds: span, step_seconds: step} = history;
  const all = Object.entries(history.clusters);
  const of = ([name, {requests: sent, errors}]) => html`
    ${plot({name: `Requests to ${name}`, times, values: sent, span, step})}
    ${errors.some((count) => count > 0) ? html`<div class="bad">${plot({name: `Errors of ${name}`, times, values: errors, span, step})}</div>` : nothing}`;
  return html`<h2>The last hour</h2>
    <p>Each value is for ${brief(step)}. What was before the start of the process is not known.</p>
    <div class="plots">${all.slice(0, PLOTS).map(of)}</div>
    ${all.length > PLOTS ? html`<p>${all.length - PLOTS} more clusters are not plotted.</p>` : nothing}`;
}

function sectionView(route, name, section, data, page) {
  const {state: only, text, sort} = route.parameters;
  const found = data.objects?.value;
  // Of the answer, not of the address: until the next one comes, the rows are those of the last one.
  const first = found?.offset ?? 0;
  const last = first + (found?.objects.length ?? 0);
  const select = (parameters) => page.change({offset: '', ...parameters});
  const counted = found && found.total > found.listed
    ? html`<p>${number(found.total)} objects are counted; ${number(found.listed)} that fail or wait can be listed.</p>` : nothing;
  return html`
    <p><a href="#/">All sections</a></p>
    <h2>${name}: ${state(section.state)}</h2>
    <p>${section.message || 'Nothing is wrong.'} ${approveLink(name, section)}</p>
    <p>${words(section.job)}, ${section.overview.flow}, ${section.overview.subject}; ${section.overview.total ? `${inStep(section.overview)} in step; ` : nothing}readiness: ${words(section.readiness.state)}${section.readiness.reason ? ` (${section.readiness.reason})` : ''}.</p>
    ${plots(data.history?.value)}
    <h2>Objects</h2>
    ${counts({label: 'State of objects', counts: section.objects, selected: only ?? '', select: (is) => select({state: is})})}
    ${filter({label: 'Name has', value: text, change: (value) => select({text: value})})}
    ${counted}
    ${found ? html`
      ${objectTable('Objects', found.objects, {sorted: sort || 'urgency', sort: (by) => select({sort: by}), empty: 'None is selected.'})}
      ${pager({
        text: found.matching ? `${number(first + 1)}–${number(last)} of ${number(found.matching)}` : '0',
        back: first > 0 ? () => page.change({offset: Math.max(0, first - ROWS) || ''}) : null,
        next: last < found.matching ? () => page.change({offset: first + ROWS}) : null,
      })}` : html`<p>Reading …</p>`}`;
}

function plots(history) {
  const of = history?.section;
  if (!of || !history.times.length) return nothing;
  const common = {times: history.times, span: history.window_seconds, step: history.step_seconds};
  const seconds = (value) => (value === null || value === undefined ? '–' : value < 10 ? `${value.toFixed(3)} s` : brief(value));
  return html`<h2>The last hour</h2><div class="plots">
    ${plot({...common, name: 'In step', values: of.in_step})}
    <div class="bad">${plot({...common, name: 'Failing', values: of.failing})}</div>
    ${plot({...common, name: 'Oldest change', values: of.oldest_seconds.map((age, place) => (of.in_step[place] === null ? null : age ?? 0)), format: brief})}
    ${plot({...common, name: `Writes in ${brief(common.step)}`, values: of.writes})}
    ${plot({...common, name: 'Delay', values: of.delay_seconds, format: seconds})}
  </div>`;
}

function approval(name, section, held, page) {
  const link = html`<p><a href=${hashOf({parts: ['section', name]})}>Section ${name}</a></p>`;
  if (!held) return html`${link}<h2>Approve ${name}</h2><p>Reading what is held …</p>`;
  // An approval does not help a syncset that can't be read.
  const isApprovable = ({kind}) => kind !== 'unreadable';
  const approvable = held.objects.filter(isApprovable).length + (held.more ?? 0);
  const all = held.objects.length + (held.more ?? 0);
  const counting = held.counting?.length ? html`<p>Being counted: ${held.counting.join(', ')}. Their deletions wait for that.</p>` : nothing;
  if (!all && !held.because) return html`${link}<h2>Approve ${name}</h2><p>Nothing is held.</p>${counting}`;
  // Of syncsets each can be approved by itself.
  const single = section.job === 'syncsets';
  const what = held.because ? 'the clusters as they are now' : approvable === 1 ? 'this change' : `these ${number(approvable)} changes`;
  const columns = [
    {head: 'Object', cell: (object) => object.key},
    {head: 'Change', cell: (object) => words(object.kind)},
    {head: 'Why it is held', cell: (object) => object.reason},
  ];
  const button = (syncset, text) => html`<button type="button" class="danger" aria-disabled=${isApproving} data-digest=${held.digest}
    @pointerdown=${() => begin(name, held.digest)} @click=${() => approve(name, syncset, held.digest, page)}>${text}</button>`;
  if (single) {
    const syncset = (object) => object.key.split(' ').at(-1);
    columns.push({head: 'Approve', cell: (object) => (isApprovable(object) ? button(syncset(object), `Approve ${object.key}`) : 'An approval does not help')});
  }
  return html`${link}
    <h2>Approve ${name}</h2>
    ${held.because
      ? html`<p>The whole section is held: ${held.because}. An approval accepts the clusters as they are now; deletions that are held are
          approved by themselves. It can't be taken back.</p>`
      : html`<p>An approval lets Towline do what is held when it arrives, which is the following as far as this page knows. It can't be taken
          back, and does not cover what comes to be held later.</p>`}
    ${all && !held.because ? table({caption: 'What would be done', rows: held.objects, columns, most: 200, more: held.more}) : nothing}
    ${counting}
    ${held.because || approvable ? html`<p>${button('', `Approve ${what} of ${name}`)}</p>` : nothing}`;
}

let isApproving = false;
// The section and the digest that were shown when a press began, or an attempt that needs the token.
let begun = null;

function begin(section, digest) {
  if (begun?.section !== section) begun = {section, digest};
}

/** Approves what has this digest, as the reader has seen it: what has come to be held meanwhile stays held. */
async function approve(section, name, digest, page) {
  begin(section, digest);
  const {digest: read} = begun;
  begun = null;
  if (isApproving) return;
  if (read !== digest) {
    page.say(`${section} is not approved: what is held has changed since the button was pressed. Read it before you press again.`);
    return;
  }
  isApproving = true;
  page.say(`Approving ${name || section} …`);
  let [told, status] = ['', 0];
  try {
    const done = await ask(`../approve/${encodeURIComponent(section)}${queryOf({name, digest})}`, {method: 'POST'});
    told = `${section}: ${approved(done)}.`;
  } catch (error) {
    status = error.status;
    told = status
      ? `${section} is not approved: ${error.message}.`
      : `It is not known whether ${section} is approved: the daemon does not answer. What is held is read again.`;
  }
  isApproving = false;
  if (status === 401) begun = {section, digest};
  page.say(told);
  if (status === 401) page.askToken();
  else page.again();
}

/** What the daemon says that it has approved. */
function approved(done) {
  const kept = done.remembered ? '; a restart remembers that' : done.reason ? `; ${done.reason}` : '';
  if (done.overruled) return `the clusters are approved as they are now (${done.overruled})${kept}`;
  if (Array.isArray(done.approved)) return `deletions approved: ${done.approved.map((held) => held.syncset).join(', ')}`;
  return `${number(done.approved)} ${done.approved === 1 ? 'change is' : 'changes are'} approved${kept}`;
}

function actors(tree) {
  if (!tree || tree.error) return html`<p>${tree?.error ?? 'Nothing is known of it.'}</p>`;
  let left = ACTORS;
  const one = (actor) => {
    left -= 1;
    const restarts = actor.restarts ? `, ${number(actor.restarts)} restarts` : '';
    const mailbox = actor.mailbox?.depth ? `, ${number(actor.mailbox.depth)} messages wait` : '';
    return html`<li>${actor.name}: ${actor.state}${restarts}${mailbox}${below(actor.children ?? [])}</li>`;
  };
  const below = (children) => {
    if (!children.length) return nothing;
    const shown = [];
    for (const child of children) {
      if (left <= 0) return html`<ul class="tree">${shown}<li>and more: towline status --tree</li></ul>`;
      shown.push(one(child));
    }
    return html`<ul class="tree">${shown}</ul>`;
  };
  return html`<ul class="tree">${one(tree)}</ul>`;
}

start({title: ({status}) => (status ? `Towline ${status.value.version}` : 'Towline'), every: 5_000, paths, view, footer: ', except for approvals'});
