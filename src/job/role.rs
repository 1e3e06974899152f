//! The roles of actors: the list behind metrics, `/status` and the drawings of the actor tree.

#[cfg(test)]
use std::fmt::Write;

/// A kind of actor. An actor's role is the first word of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Role {
    /// The first word of the names, and the label of metrics.
    pub name: &'static str,
    /// The rest of the name: `<kind> [selector]`.
    pub of: &'static str,
    pub does: &'static str,
    pub children: &'static [Role],
}

impl Role {
    /// A role without actors below it.
    pub const fn new(name: &'static str, of: &'static str, does: &'static str) -> Self {
        Self { name, of, does, children: &[] }
    }

    /// The role with these actors below it.
    #[must_use]
    pub const fn over(self, children: &'static [Role]) -> Self {
        Self { children, ..self }
    }

    /// This role and those below it.
    pub fn all(&'static self) -> Vec<&'static Self> {
        std::iter::once(self).chain(self.children.iter().flat_map(Self::all)).collect()
    }
}

/// The actor that writes the Events of a section.
pub const EVENTS: Role = Role::new("events", "", "writes Events on objects, where they are granted");

/// The actor that stores the state of a section.
pub const STATE: Role = Role::new("state", "", "reads and writes what the section remembers beyond its process");

/// The column at which the descriptions begin.
#[cfg(test)]
const DESCRIPTIONS: usize = 37;

/// Draws a tree, as the documents show it.
#[cfg(test)]
pub fn draw(root: &str, does: &str, roles: &[Role]) -> String {
    let mut text = line(root, does);
    draw_below("", roles, &mut text);
    text
}

#[cfg(test)]
fn draw_below(indent: &str, roles: &[Role], text: &mut String) {
    for (position, role) in roles.iter().enumerate() {
        let (branch, below) = if position + 1 == roles.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        text.push_str(&line(format!("{indent}{branch}{} {}", role.name, role.of).trim_end(), role.does));
        draw_below(&format!("{indent}{below}"), role.children, text);
    }
}

#[cfg(test)]
fn line(name: &str, does: &str) -> String {
    let mut line = String::new();
    // Writing to a string can't fail.
    let _ = writeln!(line, "{name:<DESCRIPTIONS$}{does}");
    line
}
