// Package schema copies the definitions that a set of tables needs from the
// source to the target: the tables, what their columns, defaults, checks and
// indexes are made of, and the partitioned tables above them.
//
// The definitions come from pg_dump, read under the snapshot of the load, so
// that they fit the rows. What of a dump is needed is found by its own
// dependencies, beginning at the selected tables. What the target has already
// is kept when it is equal and is a problem when it differs; nothing on the
// target is ever altered or dropped.
//
// Not copied, since a replica either gets their effects through the stream or
// must not have them: triggers, rules, row security policies, views,
// materialized views, owners, privileges, publications, subscriptions, security
// labels, tablespaces and table access methods.
package schema
