// The page of a fleet: the clusters of a hub by state, what fails on them, and what is held.

import {ROWS, brief, counts, filter, hashOf, html, nothing, number, pager, queryOf, start, state, table} from './page.js';

const clusterLink = ({namespace, name}) => html`<a href=${hashOf({parts: ['cluster', namespace, name]})}>${namespace}/${name}</a>`;
// A group of failures and a syncset in an address: `SyncSet/NAMESPACE/NAME`, `SelectorSyncSet/NAME`.
const syncsetPath = ({kind, namespace, name}) => [kind, ...(namespace ? [namespace] : []), name].join('/');

/** Where each page begins that has been left by *Next*, by where the next one begins. A page that is loaded again knows none. */
const before = new Map();

function paths({parts: [view, namespace, name], parameters}) {
  if (view === 'cluster') {
    const at = `${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
    return {sync: `../v1/clustersyncs/${at}`, cluster: `../v1/fleet/clusters${queryOf({namespace, text: `${namespace}/${name}`, limit: ROWS})}`};
  }
  const {state: only, text, labels, by, syncset, after} = parameters;
  return {
    fleet: `../v1/fleet${queryOf({groupBy: by})}`,
    failures: `../v1/syncset-failures?limit=${ROWS}`,
    clusters: `../v1/fleet/clusters${queryOf({state: only, text, labelSelector: labels, syncset, limit: ROWS, continue: after})}`,
  };
}

function view(route, data, page) {
  const [place, namespace, name] = route.parts;
  if (place === 'cluster') return cluster(namespace, name, data);
  if (!data.fleet) return html`<p>Reading …</p>`;
  const {fleet, failures, clusters} = Object.fromEntries(Object.entries(data).map(([key, {value}]) => [key, value]));
  const {parameters} = route;
  const select = (changed) => {
    before.clear();
    page.change({after: '', ...changed});
  };
  return html`
    <h2>${number(fleet.clusters)} clusters</h2>
    ${counts({label: 'Clusters by state', counts: fleet.states, selected: parameters.state ?? '', select: (is) => select({state: is})})}
    ${groups(fleet, parameters, page)}
    ${held(fleet)}
    ${failures ? failing(failures, parameters, select) : nothing}
    <h2>Clusters</h2>
    ${parameters.syncset ? html`<p>Only those on which ${parameters.syncset} fails.
      <button type="button" @click=${() => select({syncset: ''})}>All clusters</button></p>` : nothing}
    ${filter({label: 'NAMESPACE/NAME has', value: parameters.text, change: (text) => select({text})})}
    <p class="filter"><label for="labels">Labels (env=prod,tier)</label>
      <input id="labels" type="search" autocomplete="off" spellcheck="false" .value=${parameters.labels ?? ''}
        @change=${(event) => select({labels: event.target.value.trim()})}></p>
    ${clusters ? html`${clusterTable(clusters.items)}${pages(data.clusters, paths(route).clusters, parameters, page)}` : html`<p>Reading …</p>`}`;
}

function groups({groups: all, groupsMore: more}, {by}, page) {
  return html`<p class="filter"><label for="by">Count by label</label>
      <input id="by" type="text" autocomplete="off" spellcheck="false" .value=${by ?? ''}
        @change=${(event) => page.change({by: event.target.value.trim()})}></p>
    ${all.length ? table({
      caption: `Clusters by ${by}`,
      rows: all,
      more,
      columns: [
        {head: by, cell: ({value}) => value ?? '(without it)'},
        {head: 'Clusters', cell: ({clusters}) => number(clusters)},
        {head: 'States', cell: ({states}) => Object.entries(states).filter(([, count]) => count)
          .map(([name, count]) => html`${state(name)} ${number(count)} `)},
      ],
    }) : nothing}`;
}

function held({held: all, heldMore: more}) {
  if (!all.length) return nothing;
  return table({
    caption: 'Held deletions',
    rows: all,
    more,
    columns: [
      {head: 'Syncset', cell: ({syncset}) => syncset},
      {head: 'State', cell: () => state('held')},
      {head: 'Clusters', cell: ({clusters}) => number(clusters)},
      {head: 'Why', cell: ({reason}) => reason},
      {head: 'Next step', cell: ({nextStep}) => nextStep},
    ],
  });
}

function failing({items, total}, {syncset: selected}, select) {
  return table({
    caption: 'What fails, by syncset and message',
    rows: items,
    more: total - items.length,
    where: 'listed by towline failures',
    empty: 'No syncset fails.',
    columns: [
      {head: 'Syncset', cell: (group) => `${group.kind} ${group.namespace ? `${group.namespace}/` : ''}${group.name}`},
      {head: 'Clusters', cell: (group) => html`<button type="button" aria-pressed=${selected === syncsetPath(group)}
        @click=${() => select({syncset: syncsetPath(group), state: ''})}>${number(group.count)}<span class="hidden"> clusters of ${group.name}</span></button>`},
      {head: 'Reason', cell: ({reason}) => reason},
      {head: 'Message of the first', cell: ({message}) => message},
      {head: 'First clusters', cell: ({clusters}) => clusters.slice(0, 3).map((one) => html`${clusterLink(one)} `)},
    ],
  });
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
      {head: 'Why', cell: (one) => [one.reason, one.message].filter(Boolean).join(': ') || '–'},
    ],
  });
}

function pages({value: {items, continue: next}, path}, wanted, {after}, page) {
  const text = items.length ? `${items[0].namespace}/${items[0].name} and ${items.length - 1} more` : 'none on this page';
  // Until the rows of another page have come, its neighbours are not known.
  const isCurrent = path === wanted;
  return pager({
    text,
    backTo: after && !before.has(after) ? 'First page' : 'Previous',
    back: isCurrent && after ? () => page.change({after: before.get(after) ?? ''}) : null,
    next: isCurrent && next ? () => {
      before.set(next, after ?? '');
      page.change({after: next});
    } : null,
  });
}

/** Which syncsets a cluster has, which of them fail, and what they delete. */
function cluster(namespace, name, {sync, cluster: states}) {
  const link = html`<p><a href="#/">All clusters</a></p>`;
  if (!sync) return html`${link}<h2>${namespace}/${name}</h2><p>Nothing has been read of it.</p>`;
  const {status = {}} = sync.value;
  const one = states?.value.items.find((item) => item.name === name);
  const of = (kind, list) => (list ?? []).map((entry) => ({...entry, kind}));
  const rank = ({result}) => (result === 'Failure' ? 0 : 1);
  const syncsets = [...of('SyncSet', status.syncSets), ...of('SelectorSyncSet', status.selectorSyncSets)].sort((a, b) => rank(a) - rank(b));
  const objects = (list = []) => list.slice(0, 5).map((object) => `${object.kind} ${object.namespace ? `${object.namespace}/` : ''}${object.name}`)
    .join(', ') + (list.length > 5 ? `, ${list.length - 5} more` : '');
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
    ${table({
      caption: 'Syncsets, those that fail first',
      rows: syncsets,
      columns: [
        {head: 'Syncset', cell: (entry) => `${entry.kind} ${entry.name}`},
        {head: 'State', cell: ({result}) => state({Failure: 'failing', Success: 'in_step'}[result] ?? 'due')},
        {head: 'Since', cell: (entry) => entry.lastTransitionTime ?? '–'},
        {head: 'Why', cell: (entry) => [entry.reason, entry.failureMessage].filter(Boolean).join(': ') || '–'},
        {head: 'Deletes when dropped', cell: (entry) => objects(entry.resourcesToDelete) || '–'},
        {head: 'Sent by another', cell: (entry) => objects(entry.superseded) || '–'},
      ],
    })}
    <p>More of one object: <code>towline explain ${namespace}/${name} KIND/NAMESPACE/NAME</code></p>`;
}

start({title: () => 'Towline fleet', every: 15_000, paths, view});
