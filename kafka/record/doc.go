// Package record says what a Kafka record of ours looks like: keys, values and
// headers of the changes of a transaction, in each of the formats, and back. It
// knows neither topics nor producers.
//
// The format json is Debezium's envelope (PostgreSQL connector 3.6). Where that
// loses something it differs, unless Options.Lossy asks for the loss;
// docs/kafka.md lists the differences. The invariant: what [Decoder] reads from
// the records of a change is that change, every value as PostgreSQL's text.
package record
