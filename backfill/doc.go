// Package backfill loads tables beside the stream. Its Source stands between the
// PostgreSQL source and everything else: it reads tables in chunks, gives each
// chunk away as a transaction of its own, and takes out of the stream what the
// chunks have shown already. It writes nothing to the source.
//
// # Why the result is exact
//
// Words: a chunk is read in a snapshot S, and L is a position of the source's log
// read after S was taken: the commit record of whatever S sees lies below L. The
// stream is the list of transactions as they are given away, and a transaction
// is delivered once its first part was. A table's keys are cut into ranges,
// each of which is unread, or read with its S and L, or done.
//
// The destination holds nothing of an unread range, so a change of it is dropped:
// the chunk will have it. For that the chunk must not be older than what was
// dropped. A commit can be decoded before it is visible (it waits for a
// synchronous standby), so being read later is not enough: every transaction that
// was delivered before is looked for in S, and if S does not see one of them, S is
// given up and another one taken.
//
// While a chunk is read the stream goes on. From before S is taken, changes of the
// range are held instead of dropped. When the chunk comes, it takes those of its
// keys that S does not see along, behind its rows. They are a bounded number; if
// there are too many, the chunk is given up, what was held counts as dropped, and
// the next one is smaller.
//
// After the chunk was given away, a change of its range is dropped if S sees its
// transaction (the rows have it) and passes otherwise. Once the stream has passed
// L, S sees nothing of what still comes: S is forgotten and the range is done.
//
// With Options.Early nothing is dropped or kept back: a destination that takes any
// change may hold a row of an unread range, brought by a change that passed early,
// and has to see what becomes of it, also where a chunk's snapshot has shown that
// already. The rows of a chunk that such changes have touched since are left out of
// it. What is repeated that way ends once the stream has passed L. Tables without a
// key are the exception: nothing tells their rows apart, so changes of them wait.
//
// Such changes, and the rows of chunks, are marked (Change.Early), and whoever takes them
// in order, each as what holds of its key behind it (Change.Loosen), comes to the rows of the source:
// the transactions of one key become visible in the order of their commits, since the later one has waited
// for the lock of the row. So a snapshot shows a key as it was behind one of its changes,
// and behind that row come the same changes up to that one once more, which end where it
// is; or newer ones have passed, and then the row is left out. It can't be left out
// if values of it were not sent with those (unchanged TOAST): then the key becomes a hole, whose row is given away as those changes have left it. So does
// the new key of a row that has moved without a value, unless the destination had the old row
// as it was then, which it had if the old key passed as not shown by any chunk.
//
// A key change is judged for each key. What comes out is an update if both rows
// are at the destination, a delete or an insert if one of them is, or nothing. If
// the new row is to be inserted and a value of it was not sent (unchanged TOAST),
// that value is nowhere: the key becomes a hole, an unread range of one key inside
// of a read one, and is read on its own under the same rules. A hole is known by
// the bytes of its key, since the server may take another key for equal. Where
// several rows may share a key there are no holes: such a key needs REPLICA
// IDENTITY FULL, under which every value is sent. All rows of a key are read with
// the same chunk, so that it lies in one range.
//
// A TRUNCATE in transaction X passes where no range of the table was read by a
// snapshot that sees X: all that is there is older. If all ranges that hold rows
// were, nothing is older, and it is dropped. Else it passes, and all ranges are
// unread again, in the same transaction of the destination. A rewrite of the
// table is not in the stream; the table has another file then, and is emptied and
// read again as well.
//
// With a chosen key, of other columns than those that tell rows apart, a row may be in
// two ranges at different times. Such a chunk is given away once the stream has passed
// L, and with what was held carried out on its rows. So is one of a table with further
// unique columns: a value of such a column may be in two rows at different times. (Early, the rows
// that changes have touched are left out of it, as of any other.)
//
// # Crashes
//
// The state of a table is its mark: its ranges with S and L where the stream has
// not passed L. It is stored with the rows of each chunk, so the destination never
// has rows that the mark does not speak of. Whatever was held or dropped belongs
// to unread ranges. What is not stored is which transactions were delivered and
// may still be invisible. After a restart the first S must see everything below
// the number that the next transaction had at the restart: all of what was
// delivered lies below it. (The xmax of a snapshot would not do: a committed
// transaction that is not visible yet can lie behind it.) The same holds for what
// was committed before a slot existed, or before a table was published.
//
// The mark grows with what is read at the same time and not with the table: done
// ranges next to each other are one.
//
// # Order
//
// What comes before what is decided by the server (snapshot.Key): by the bytes of
// keys only where that is known to be the same, else by asking it.
package backfill
