//! What is written once more although the server's result is known: the definition of a kind may have changed, or an hour has passed.

use tokio::time::Instant;

use super::Section;

impl Section {
    /// Asks for the pairs whose fields that a server did not keep are to be written again.
    pub(crate) async fn request_due_again(&self) {
        let due = self.index(|index| index.table.due_again(Instant::now()));
        for key in due {
            self.request(key).await;
        }
    }

    /// The definition of the kind may have changed: what a server did not keep is written once more. Where it is served in
    /// another way, all statuses are compared anew.
    pub(crate) fn definition_changed(&self, another_way: bool) {
        let again = self.index(|index| index.table.all_again());
        if another_way {
            self.index(|index| index.table.forget_statuses());
            self.ask_for(self.all_pairs());
        } else if !again.is_empty() {
            self.ask_for(again);
        }
    }
}
