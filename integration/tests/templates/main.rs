//! Templates of syncsets, against Go's own `text/template` (rule 4 of syncsets).

mod compared;
mod drawn;
mod go;
