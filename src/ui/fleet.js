// The page of a fleet: the clusters of a hub by state, what fails on them, what is held, and how far rollouts are.

import {ROWS, brief, counts, filter, hashOf, html, nothing, number, pager, queryOf, start, state, table} from './page.js';

const clusterLink = ({namespace, name}) => html`<a href=${hashOf({parts: ['cluster', namespace, name]})}>${namespace}/${name}</a>`;
// A syncset in an address: `SyncSet/NAMESPACE/NAME`, `SelectorSyncSet/NAME`.
const syncsetParts = ({kind, namespace, name}) => [kind, ...(namespace ? [namespace] : []), name];
const syncsetLink = (one, place = 'syncset') => html`<a href=${hashOf({parts: [place, ...syncsetParts(one)]})}>${one.kind} ${
  one.namespace ? `${one.namespace}/` : ''}${one.name}</a>`;
/** Rows of a table that is beside that of the clusters. */
const FEW = 25;
/** The states of health, the worst first. */
const HEALTH = ['Failed', 'Unknown', 'Progressing', 'Current'];
/** What the commands of a rollout do, each with what follows the syncset. */
const COMMANDS = {
  promote: {does: 'lets the next wave begin', after: ({wave}) => (wave ? ` ${wave}` : '')},
  pause: {does: 'lets no further cluster change until it is resumed'},
  resume: {does: 'continues where it was paused or has stopped'},
  undo: {does: 'brings all clusters to the stable revision'},
  abort: {does: 'ends it: each cluster keeps what it has'},
};

/** How a syncset is on a cluster, as a filter. The first two are possible without health. */
const OUTCOMES = ['not_applied', 'held', 'failed', 'late', 'unknown', 'progressing', 'current'];

/** Whether the hub has no `[syncsets]`: it keeps documents, and knows no states. */
let isPlain = false;

/** What the types of a hub's problems begin with. What is before a hub answers 404 while no replica is there, and gives no type. */
const PROBLEM = 'urn:towline:problem:';

/** A syncset that is gone or that the token may not read: its clusters and held deletions may be shown all the same. */
const isMissed = ({type, path}) => [`${PROBLEM}forbidden`, `${PROBLEM}not-found`].includes(type) && /^\.\.\/v1\/(syncsets\/[^/?]+|selectorsyncsets)\/[^/?]+$/.test(path);

function instead({type, path}) {
  if (isPlain || type !== `${PROBLEM}not-found` || !path.startsWith('../v1/fleet')) return false;
  isPlain = true;
  return true;
}

/** Where each page begins that has been left by *Next*, by the view and where the next one begins. A page that is loaded again knows none. */
const before = new Map();
const placeOf = (after) => `${location.hash.split('?')[0]} ${after}`;

/** The path of a syncset's document. */
const documentOf = ({parts: [, kind, name, more]}) =>
  `../v1/${[kind === 'SyncSet' ? 'syncsets' : 'selectorsyncsets', name, more].filter(Boolean).map(encodeURIComponent).join('/')}`;

function paths(route) {
  const {parts: [view, namespace, name, more], parameters} = route;
  if (view === 'syncset' || view === 'rollout') {
    const at = documentOf(route);
    if (view === 'rollout') return {syncset: at, rollout: `${at}/rollout`};
    const {outcome, text, after} = parameters;
    const of = [namespace, name, more].filter(Boolean).join('/');
    return {syncset: at,
      ...(isPlain ? {} : {[`of ${of}`]: `../v1/fleet/clusters${queryOf({syncset: of, outcome, text, limit: ROWS, continue: after})}`})};
  }
  if (view === 'cluster') {
    const at = `${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
    return {sync: `../v1/clustersyncs/${at}`,
      ...(isPlain ? {} : {cluster: `../v1/fleet/clusters${queryOf({namespace, text: `${namespace}/${name}`, limit: ROWS})}`})};
  }
  const {state: only, text, labels, by, namespace: within, after} = parameters;
  if (isPlain) return {documents: `../v1/clusters${queryOf({fields: 'metadata', namespace: within, labelSelector: labels, limit: ROWS, continue: after})}`};
  return {
    fleet: `../v1/fleet${queryOf({groupBy: by})}`,
    failures: `../v1/syncset-failures?limit=${ROWS}`,
    rollouts: `../v1/rollouts?limit=${ROWS}`,
    clusters: `../v1/fleet/clusters${queryOf({state: only, text, labelSelector: labels, limit: ROWS, continue: after})}`,
  };
}

function view(route, data, page) {
  const [place, namespace, name] = route.parts;
  if (place === 'cluster') return cluster(namespace, name, data, route.parameters, page);
  if (place === 'syncset' || place === 'rollout') return syncset(route, data, page);
  if (isPlain) return documents(route, data, page);
  if (!data.fleet) return html`<p>Reading …</p>`;
  const {fleet, failures, rollouts, clusters} = Object.fromEntries(Object.entries(data).map(([key, {value}]) => [key, value]));
  const {parameters} = route;
  const select = selection(page);
  return html`
    <h2>${number(fleet.clusters)} ${fleet.clusters === 1 ? 'cluster' : 'clusters'}</h2>
    ${counts({label: 'Clusters by state', counts: fleet.states, selected: parameters.state ?? '', select: (is) => select({state: is})})}
    ${groups(fleet, parameters, page)}
    ${held(fleet)}
    ${rollouts ? rolling(rollouts, parameters, page) : nothing}
    ${failures ? failing(failures, parameters, page) : nothing}
    <h2>Clusters</h2>
    ${filter({label: 'NAMESPACE/NAME has', value: parameters.text, change: (text) => select({text})})}
    ${labelFilter(parameters, select)}
    ${clusters ? html`${clusterTable(clusters.items)}${pages(data.clusters, paths(route).clusters, parameters, page)}` : html`<p>Reading …</p>`}`;
}

/** Selects rows, from the first page of these. */
const selection = (page) => (changed) => {
  before.clear();
  page.change({after: '', ...changed});
};

/** A field whose text counts when it is complete. */
const field = ({id, label, value, change}) => html`<p class="filter"><label for=${id}>${label}</label>
    <input id=${id} type="search" autocomplete="off" spellcheck="false" .value=${value ?? ''}
      @change=${(event) => change(event.target.value.trim())}></p>`;

const labelFilter = ({labels}, select) =>
  field({id: 'labels', label: 'Labels (env=prod,tier)', value: labels, change: (text) => select({labels: text})});

/** The clusters of a hub that knows nothing more of them. */
function documents(route, {documents: read}, page) {
  const select = selection(page);
  return html`
    <h2>Clusters</h2>
    <p>This hub keeps documents, and its configuration has no <code>[syncsets]</code>: it applies nothing to clusters, and knows no states of them.</p>
    ${field({id: 'filter', label: 'Namespace', value: route.parameters.namespace, change: (text) => select({namespace: text})})}
    ${labelFilter(route.parameters, select)}
    ${read ? html`${table({
      caption: 'Documents of clusters by name',
      rows: read.value.items,
      empty: 'None is selected.',
      columns: [
        {head: 'Cluster', cell: ({namespace, name}) => `${namespace}/${name}`},
        {head: 'Labels', cell: ({labels}) => Object.entries(labels).map(([key, value]) => `${key}=${value}`).join(', ') || '–'},
        {head: 'Written', cell: ({updatedAt}) => updatedAt},
      ],
    })}${pages(read, paths(route).documents, route.parameters, page)}` : html`<p>Reading …</p>`}`;
}

function groups({groups: all, groupsMore: more}, {by}, page) {
  return html`${field({id: 'by', label: 'Count by label', value: by, change: (text) => page.change({by: text})})}
    ${all.length ? table({
      caption: `Clusters by ${by}`,
      rows: all,
      most: FEW,
      more,
      columns: [
        {head: by, cell: ({value}) => value ?? '(without it)'},
        {head: 'Clusters', cell: ({clusters}) => number(clusters)},
        {head: 'States', cell: ({states}) => Object.entries(states).filter(([, count]) => count)
          .map(([name, count]) => html`${state(name)} ${number(count)} `)},
      ],
    }) : nothing}`;
}

/** The clusters of a syncset where it is so: `text`, as a link to them. */
const outcomeLink = (parts, outcome, text) => html`<a href=${hashOf({parts: ['syncset', ...parts], parameters: {outcome}})}>${text}</a>`;

function held({held: all, heldMore: more}) {
  // `SyncSet team-a/base`; of one that is gone perhaps its id.
  const partsOf = (label) => [label.split(' ', 1)[0], ...label.slice(label.indexOf(' ') + 1).split('/')];
  const isNamed = (label) => label.startsWith('SelectorSyncSet ') || /^SyncSet .*\//.test(label);
  if (!all.length) return nothing;
  return table({
    caption: 'Held deletions',
    rows: all,
    most: FEW,
    more,
    columns: [
      {head: 'Syncset', cell: ({syncset}) => syncset},
      {head: 'State', cell: () => state('held')},
      {head: 'Clusters', cell: ({syncset, clusters}) => (isNamed(syncset)
        ? outcomeLink(partsOf(syncset), 'held', html`${number(clusters)}<span class="hidden"> clusters of ${syncset}</span>`) : number(clusters))},
      {head: 'Why', cell: ({reason}) => reason},
      {head: 'Next step', cell: ({nextStep}) => nextStep},
    ],
  });
}

/** How many there are of each state. */
function tally(all, stateOf) {
  const counted = {};
  for (const one of all) counted[stateOf(one)] = (counted[stateOf(one)] ?? 0) + 1;
  return counted;
}

/** A sentence with commands in backticks. */
const withCommands = (text) => text.split('`').map((part, place) => (place % 2 ? html`<code>${part}</code>` : part));

const revisions = ({stable, revision}) => (stable === revision ? revision : `${stable ?? '–'} → ${revision}`);
const because = ({reason, message}) => [reason, message].filter(Boolean).join(': ');

function rolling({items, more}, {rollout}, page) {
  if (!items.length) return nothing;
  // The server knows no filter: of a part neither counts nor the rows of a state would be true.
  const only = more ? '' : rollout;
  return html`<h2>Rollouts</h2>
    ${more ? nothing : counts({label: 'Rollouts by state', counts: tally(items, (one) => one.state), selected: only,
      select: (is) => page.change({rollout: is})})}
    ${table({
      caption: 'Rollouts, those first that have stopped',
      rows: items.filter((one) => !only || one.state === only),
      most: FEW,
      more,
      where: 'listed by towline rollout status',
      empty: 'None is selected.',
      columns: [
        {head: 'Syncset', cell: (one) => syncsetLink(one, 'rollout')},
        {head: 'State', cell: (one) => state(one.state)},
        {head: 'Wave', cell: ({wave}) => wave ?? '–'},
        {head: 'Revision', cell: revisions},
        {head: 'For', cell: (one) => brief(one.forSeconds)},
        {head: 'Why', cell: (one) => because(one) || '–'},
        // The command is on the page of the rollout, with the others that are possible.
        {head: 'Next step', cell: (one) => (one.nextStep
          ? html`<a href=${hashOf({parts: ['rollout', ...syncsetParts(one)]})}>${withCommands(one.nextStep)}</a>` : '–')},
      ],
    })}`;
}

function failing({items, total}, {failures}, page) {
  const more = total - items.length;
  const only = more ? '' : failures;
  const stateOf = ({health}) => health ?? 'not_applied';
  return html`
    ${items.length && !more ? counts({label: 'Failures by state', counts: tally(items, stateOf), selected: only,
      select: (is) => page.change({failures: is})}) : nothing}
    ${table({
      caption: 'What fails or does not work, by syncset and message',
      rows: items.filter((group) => !only || stateOf(group) === only),
      most: FEW,
      more,
      where: 'listed by towline failures',
      empty: only ? 'None is selected.' : 'No syncset fails.',
      columns: [
        {head: 'Syncset', cell: (group) => syncsetLink(group)},
        {head: 'State', cell: (group) => state(stateOf(group))},
        {head: 'Clusters', cell: (group) => outcomeLink(syncsetParts(group),
          group.health === 'Failed' ? 'failed' : group.health ? 'late' : 'not_applied',
          html`${number(group.count)}<span class="hidden"> clusters of ${group.name}</span>`)},
        {head: 'Reason', cell: ({reason}) => reason},
        {head: 'Message of the first', cell: ({message}) => message},
        {head: 'First clusters', cell: ({clusters}) => clusters.slice(0, 3).map((one) => html`${clusterLink(one)} `)},
      ],
    })}`;
}

function clusterTable(rows) {
  return table({
    caption: 'Clusters by name',
    rows,
    empty: 'None is selected.',
    columns: [
      {head: 'Cluster', cell: clusterLink},
      {head: 'State', cell: (one) => state(one.state)},
      {head: 'For', cell: (one) => brief(one.forSeconds)},
      {head: 'Failing', cell: (one) => (one.failing ? `${number(one.failing)}: ${one.syncset}` : '–')},
      {head: 'Why', cell: (one) => because(one) || '–'},
    ],
  });
}

function pages({value: {items, continue: next}, path}, wanted, {after}, page) {
  const text = items.length ? `${items[0].namespace}/${items[0].name} and ${items.length - 1} more` : 'none on this page';
  // Until the rows of another page have come, its neighbours are not known.
  const isCurrent = path === wanted;
  return pager({
    text,
    backTo: after && !before.has(placeOf(after)) ? 'First page' : 'Previous',
    back: isCurrent && after ? () => page.change({after: before.get(placeOf(after)) ?? ''}) : null,
    next: isCurrent && next ? () => {
      before.set(placeOf(next), after ?? '');
      page.change({after: next});
    } : null,
  });
}

/** A syncset: on how many clusters its objects work, how far its rollout is, and how it is on each of its clusters. */
function syncset(route, data, page) {
  const [place, kind, ...names] = route.parts;
  const {syncset: read, rollout} = data;
  const name = names.join('/');
  const link = html`<p><a href="#/">All clusters</a></p>`;
  // Of one that is gone deletions may be held.
  const where = place === 'syncset' && !isPlain ? tried(route, data[`of ${kind}/${name}`], read?.value?.status?.health, page) : nothing;
  if (!read?.value) return html`${link}<h2>${kind} ${name}</h2><p>${read ? 'It is gone, or this token may not read it.' : 'Nothing has been read of it.'}</p>${where}`;
  const {health, rollout: inShort} = read.value.status ?? {};
  return html`${link}
    <h2>${kind} ${name}</h2>
    ${health ? table({
      caption: 'Clusters by health',
      rows: HEALTH,
      columns: [{head: 'Health', cell: state}, {head: 'Clusters', cell: (is) => number(health[is.toLowerCase()])}],
    }) : html`<p>It has no <code>health</code>: that it was applied does not say that it works.</p>`}
    ${rollout ? waves(rollout.value, name)
      : inShort ? html`<p>Its rollout: ${state(inShort.state)}. <a href=${hashOf({parts: ['rollout', kind, ...names]})}>Waves and commands</a></p>`
        : html`<p>It has no <code>rollout</code>: a change reaches all of its clusters at once.</p>`}
    ${where}`;
}

/** The clusters of a syncset, and how it is there. */
function tried(route, read, health, page) {
  const {outcome, text} = route.parameters;
  const select = selection(page);
  const possible = OUTCOMES.slice(0, health ? OUTCOMES.length : 2);
  const offered = !outcome || possible.includes(outcome) ? possible : [...possible, outcome];
  return html`
    <h2>Clusters on which it was tried</h2>
    <div role="group" aria-label="Clusters by outcome" class="counts">
      <button type="button" aria-pressed=${!outcome} @click=${() => select({outcome: ''})}>All</button>
      ${offered.map((is) => html`<button type="button" aria-pressed=${is === outcome} @click=${() => select({outcome: is})}>${state(is)}</button>`)}
    </div>
    ${filter({label: 'NAMESPACE/NAME has', value: text, change: (typed) => select({text: typed})})}
    ${read ? html`${table({
      caption: 'Its clusters by name',
      rows: read.value.items,
      empty: 'None is selected.',
      columns: [
        {head: 'Cluster', cell: clusterLink},
        {head: 'The syncset', cell: (one) => (one.outcome ? state(one.outcome) : '–')},
        {head: 'Why', cell: (one) => because(one) || '–'},
        {head: 'The cluster', cell: (one) => state(one.state)},
      ],
    })}${pages(read, Object.values(paths(route)).at(-1), route.parameters, page)}` : html`<p>Reading …</p>`}`;
}

function waves(rollout, name) {
  const count = (head, field) => ({head, cell: (wave) => number(wave[field])});
  return html`
    <h2>Rollout ${state(rollout.state)}</h2>
    <p>For ${brief(rollout.forSeconds)}, revision ${revisions(rollout)}. ${because(rollout)}</p>
    ${rollout.nextStep ? html`<p>Next step: ${withCommands(rollout.nextStep)}</p>` : nothing}
    ${table({
      caption: 'Waves',
      rows: rollout.waves ?? [],
      columns: [
        {head: 'Wave', cell: (wave) => wave.name},
        {head: 'State', cell: (wave) => state(wave.state)},
        count('Clusters', 'clusters'), count('Released', 'released'), count('Done', 'done'), count('Failed', 'failed'), count('Away', 'away'),
      ],
    })}
    ${table({
      caption: 'Commands that are possible now',
      rows: Object.entries(COMMANDS).filter(([command]) => rollout.commands.includes(command)),
      columns: [
        {head: 'Command', cell: ([command, {after}]) => html`<code>towline rollout ${command} ${name}${after?.(rollout) ?? ''}</code>`},
        {head: 'It', cell: ([, {does}]) => does},
      ],
    })}`;
}

/** Which syncsets a cluster has, which of them fail or do not work, and what they delete. */
function cluster(namespace, name, {sync, cluster: states}, {health: only = ''}, page) {
  const link = html`<p><a href="#/">All clusters</a></p>`;
  if (!sync) return html`${link}<h2>${namespace}/${name}</h2><p>Nothing has been read of it.</p>`;
  const {status = {}} = sync.value;
  const one = states?.value.items.find((item) => item.name === name);
  const of = (kind, list) => (list ?? []).map((entry) => ({...entry, kind}));
  const rank = ({result, health}) => (result === 'Failure' ? 0 : (health ? HEALTH.indexOf(health.state) + 1 : HEALTH.length));
  const syncsets = [...of('SyncSet', status.syncSets), ...of('SelectorSyncSet', status.selectorSyncSets)].sort((a, b) => rank(a) - rank(b));
  const withHealth = syncsets.filter(({health}) => health);
  const objects = (entry, field) => {
    const [list, omitted] = [entry[field] ?? [], entry[`${field}Omitted`] ?? 0];
    const named = list.slice(0, 5).map((object) => `${object.kind} ${object.namespace ? `${object.namespace}/` : ''}${object.name}`);
    const more = list.length - named.length + omitted;
    return [...named, ...(more ? [`${number(more)} more`] : [])].join(', ') || '–';
  };
  return html`${link}
    <h2>${namespace}/${name} ${one ? state(one.state) : nothing}</h2>
    ${table({
      caption: 'Conditions',
      rows: status.conditions ?? [],
      columns: [
        {head: 'Condition', cell: (condition) => condition.type},
        {head: 'Is', cell: (condition) => condition.status},
        {head: 'Since', cell: (condition) => condition.lastTransitionTime},
        {head: 'Reason', cell: (condition) => condition.reason ?? ''},
        {head: 'Message', cell: (condition) => condition.message ?? ''},
      ],
    })}
    ${withHealth.length ? counts({label: 'Syncsets by health', counts: tally(withHealth, ({health}) => health.state), selected: only,
      select: (is) => page.change({health: is})}) : nothing}
    ${table({
      caption: 'Syncsets, those that fail first',
      rows: syncsets.filter(({health}) => !only || health?.state === only),
      empty: only ? 'None is selected.' : 'None.',
      columns: [
        {head: 'Syncset', cell: (entry) => syncsetLink({kind: entry.kind, name: entry.name, namespace: entry.kind === 'SyncSet' ? namespace : ''})},
        {head: 'State', cell: ({result}) => state({Failure: 'failing', Success: 'in_step'}[result] ?? 'pending')},
        {head: 'Since', cell: (entry) => entry.lastTransitionTime ?? '–'},
        {head: 'Why', cell: (entry) => because({reason: entry.reason, message: entry.failureMessage}) || '–'},
        {head: 'Health', cell: ({health}) => (health ? html`${state(health.state)} ${because(health)}` : '–')},
        {head: 'Does not work', cell: (entry) => objects(entry, 'unhealthy')},
        {head: 'Deletes when dropped', cell: (entry) => objects(entry, 'resourcesToDelete')},
        {head: 'Sent by another', cell: (entry) => objects(entry, 'superseded')},
      ],
    })}
    <p>More of one object: <code>towline explain ${namespace}/${name} KIND/NAMESPACE/NAME</code></p>`;
}

start({title: () => 'Towline fleet', every: 15_000, paths, view, instead, isMissed});
