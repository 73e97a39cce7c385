package config

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"time"
)

// unavailable lists the keys of the contract that this version does not act
// upon. What is below them is not looked at.
var unavailable = map[string]bool{
	"mask":               true,
	"destination.stdout": true,
}

// field takes the value of one key.
type field struct {
	set func(any) error
	// late: variables are replaced each time the value is used, not here.
	late bool
}

// fieldsOf lists all keys and where their values go.
func fieldsOf(c *Config) map[string]field {
	fields := map[string]field{
		"job":                         text(&c.Job),
		"source.postgres.url":         secret(&c.Source.Postgres.URL),
		"source.postgres.tables":      texts(&c.Source.Postgres.Tables),
		"source.postgres.slot":        text(&c.Source.Postgres.Slot),
		"source.postgres.publication": text(&c.Source.Postgres.Publication),
		"source.postgres.failover":    boolean(&c.Source.Postgres.Failover),
		"source.postgres.streaming":   streaming(&c.Source.Postgres.Streaming),
		"source.postgres.two_phase":   onOff(&c.Source.Postgres.TwoPhase),
		"source.postgres.origin":      choice(&c.Source.Postgres.Origin, []string{OriginAny, OriginNone}),

		"keys": keys(&c.Keys),

		"snapshot.mode": choice(&c.Snapshot.Mode,
			[]string{ModeConsistent, ModeIncremental, ModeNone}),
		"snapshot.parallel": number(&c.Snapshot.Parallel),
		"snapshot.timeout":  duration(&c.Snapshot.Timeout),
		"snapshot.rate":     size(&c.Snapshot.Rate),

		"apply.group":           group(&c.Apply.Group),
		"apply.max_batch_rows":  number(&c.Apply.MaxBatchRows),
		"apply.max_batch_bytes": size(&c.Apply.MaxBatchBytes),
		"apply.eager":           eager(&c.Apply.Eager),
		"apply.truncate": choice(&c.Apply.Truncate,
			[]string{TruncateAsTruncate, TruncateAsDelete}),

		"destination.postgres.url": secret(&c.Destination.Postgres.URL),
		"destination.postgres.schema": choice(&c.Destination.Postgres.Schema,
			[]string{SchemaCreate, SchemaExisting}),

		"resources.memory_budget":       size(&c.Resources.MemoryBudget),
		"resources.max_inflight":        size(&c.Resources.MaxInflight),
		"resources.channel_capacity":    number(&c.Resources.ChannelCapacity),
		"resources.buffer_size":         size(&c.Resources.BufferSize),
		"resources.max_message":         size(&c.Resources.MaxMessage),
		"resources.connection_timeout":  duration(&c.Resources.ConnectionTimeout),
		"resources.retry_backoff.min":   duration(&c.Resources.RetryBackoff.Min),
		"resources.retry_backoff.max":   duration(&c.Resources.RetryBackoff.Max),
		"resources.max_replication_lag": size(&c.Resources.MaxReplicationLag),
		"resources.wal_retention_alarm": size(&c.Resources.WALRetentionAlarm),

		"resources.spool.dir":   text(&c.Resources.Spool.Dir),
		"resources.spool.limit": size(&c.Resources.Spool.Limit),

		"safety.require_tls":                     boolean(&c.Safety.RequireTLS),
		"safety.insecure_skip_tls_verify":        boolean(&c.Safety.InsecureSkipTLSVerify),
		"safety.auto_create_publication":         boolean(&c.Safety.AutoCreatePublication),
		"safety.allow_remote_publication_create": boolean(&c.Safety.AllowRemotePublicationCreate),
		"safety.wal_retention_action": choice(&c.Safety.WALRetentionAction,
			[]string{ActionAlarm, ActionPauseLoad, ActionStop}),
		"safety.heartbeat_interval": duration(&c.Safety.HeartbeatInterval),

		"http.listen":  text(&c.HTTP.Listen),
		"http.token":   secret(&c.HTTP.Token),
		"http.actions": boolean(&c.HTTP.Actions),

		"hooks.webhook.url":           secret(&c.Hooks.Webhook.URL),
		"hooks.webhook.authorization": secret(&c.Hooks.Webhook.Authorization),
		"hooks.command":               texts(&c.Hooks.Command),
	}
	maps.Copy(fields, kafkaFields("destination.kafka", &c.Destination.Kafka))
	maps.Copy(fields, kafkaSourceFields("source.kafka", &c.Source.Kafka))
	return fields
}

func text(to *string) field {
	return field{set: func(v any) error {
		s, ok := v.(string)
		if !ok {
			return errors.New("want text; put it in quotes")
		}
		*to = s
		return nil
	}}
}

func texts(to *[]string) field {
	return field{set: func(v any) error {
		list, ok := v.([]any)
		if !ok {
			return errors.New("want a list of texts")
		}
		var read []string
		for i, item := range list {
			s, ok := item.(string)
			if !ok {
				return fmt.Errorf("item %d: want text; put it in quotes", i+1)
			}
			s, err := expand(s)
			if err != nil {
				return fmt.Errorf("item %d: %w", i+1, err)
			}
			read = append(read, s)
		}
		*to = read
		return nil
	}}
}

func secret(to *Secret) field {
	return field{late: true, set: func(v any) error {
		s, ok := v.(string)
		if !ok {
			return errors.New("want text; put it in quotes")
		}
		*to = Template(s)
		_, err := to.Get() // an unset variable is a problem now
		return err
	}}
}

// choice takes one of the allowed words.
func choice(to *string, allowed []string) field {
	return field{set: func(v any) error {
		s, _ := v.(string)
		for _, a := range allowed {
			if s == a {
				*to = s
				return nil
			}
		}
		return fmt.Errorf("want %s", strings.Join(allowed, " or "))
	}}
}

func boolean(to *bool) field {
	return field{set: func(v any) error {
		b, err := asBool(v)
		if err == nil {
			*to = b
		}
		return err
	}}
}

func asBool(v any) (bool, error) {
	switch v {
	case true, "true":
		return true, nil
	case false, "false":
		return false, nil
	}
	return false, errors.New("want true or false")
}

// onOff takes on and off, which some readers of YAML take for booleans; later
// words are for other versions.
func onOff(to *bool) field {
	return field{set: func(v any) error {
		switch v {
		case true, "on", "true":
			*to = true
			return nil
		case false, "off", "false":
			*to = false
			return nil
		}
		return errors.New("want on or off")
	}}
}

func eager(to *string) field {
	return field{set: func(v any) error {
		var on bool
		if err := onOff(&on).set(v); err != nil {
			return err
		}
		if *to = EagerOff; on {
			*to = EagerOn
		}
		return nil
	}}
}

func streaming(to *string) field {
	return field{set: func(v any) error {
		var on bool
		switch {
		case v == StreamingParallel:
			*to = StreamingParallel
		case onOff(&on).set(v) != nil:
			return errors.New("want on, off or parallel")
		case on:
			*to = StreamingOn
		default:
			*to = StreamingOff
		}
		return nil
	}}
}

func number(to *int) field {
	return field{set: func(v any) error {
		n, err := strconv.ParseInt(scalar(v), 10, 64)
		if err != nil || n < math.MinInt32 || n > math.MaxInt32 {
			return errors.New("want a whole number")
		}
		*to = int(n)
		return nil
	}}
}

func group(to *int) field {
	return field{set: func(v any) error {
		switch scalar(v) {
		case "auto":
			*to = 0
		case "1":
			*to = 1
		default:
			return errors.New("want auto or 1")
		}
		return nil
	}}
}

func size(to *Size) field {
	return field{set: func(v any) error {
		n, err := ParseSize(scalar(v))
		if err == nil {
			*to = n
		}
		return err
	}}
}

func duration(to *time.Duration) field {
	return field{set: func(v any) error {
		d, err := time.ParseDuration(scalar(v)) // takes 0 without a unit
		if err != nil {
			return errors.New("want a duration such as 10s, 5m or 6h")
		}
		*to = d
		return nil
	}}
}

// scalar gives a number or text as text. A number that comes from a variable
// is text.
func scalar(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case int64, uint64, int:
		return fmt.Sprint(v)
	}
	return ""
}
