//! Fields that an API server did not keep are written once more after a while, and when the definition of the kind may have
//! changed.

use tokio::time::Instant;

use super::Section;

impl Section {
    /// Requests the pairs with fields that are due to be written again.
    pub(crate) async fn request_due_again(&self) {
        let due = self.index(|index| index.table.due_again(Instant::now()));
        for key in due {
            self.request(key).await;
        }
    }

    /// The definition of the kind may have changed, so fields that the server did not keep are written once more. Where
    /// discovery shows the kind served differently, all statuses are compared again.
    pub(crate) fn definition_changed(&self, another_way: bool) {
        let again = self.index(|index| index.table.all_again());
        if another_way {
            self.index(|index| index.table.forget_statuses());
            self.request_later(self.all_pairs());
        } else if !again.is_empty() {
            self.request_later(again);
        }
    }
}
