//! Which clusters are paused, for statements that read many of them.

use jiff::Timestamp;

use crate::syncset::plan::action::pauses_at;

/// What pauses a cluster `c` by its document: null if nothing does, and '' if something does; otherwise the value of `pause-until`, which is not
/// in the form that can be compared as a text, and which [`is_paused`] reads. Parameter $1 are [`PAUSES`](crate::syncset::plan::action::PAUSES).
macro_rules! pause {
    () => {
        "case when coalesce(c.data->'paused' not in ('false', 'null'), false) then '' when c.annotations ?| $1 then \
           case when c.annotations ? ($1)[3] or c.annotations->>($1)[1] in ('1', 't', 'T', 'TRUE', 'true', 'True') \
               or c.annotations->>($1)[2] in ('1', 't', 'T', 'TRUE', 'true', 'True') then '' \
             when c.annotations->>($1)[4] \
                 ~ '^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z$' then \
               case when (c.annotations->>($1)[4]) collate \"C\" > to_char(now() at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') \
                 then '' end \
             else c.annotations->>($1)[4] end end as pause"
    };
}
pub(super) use pause;

/// Whether this pauses a cluster at this time.
pub(super) fn is_paused(pause: Option<&str>, now: Timestamp) -> bool {
    pause.is_some_and(|pause| pause.is_empty() || pauses_at(pause, now))
}
