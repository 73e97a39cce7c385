package kafka

import (
	"context"
	"slices"

	"github.com/millrace/millrace"
)

// PlannedTopic is a topic that a first load writes to.
type PlannedTopic struct {
	Name        string
	There       bool // it is used as it is
	Partitions  int  // that it has, or would get
	Replication int  // that it would get; -1: the cluster's default
	Config      map[string]string
}

// Plan gives the topics that a first load of tables writes to: those of the job, and
// then one of each table in the layout that has them. It changes nothing.
func (c *Control) Plan(ctx context.Context, o *Options, tables []millrace.TableName) ([]PlannedTopic, error) {
	prefix := c.e.Prefix
	control := controlTopic(prefix, c.e.Job)
	names := append([]string{control}, o.marks()...)
	for _, t := range tables {
		if n := topicName(prefix, t, o.Topics.Names); !o.stream() && !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	found, err := topics(ctx, c.cl, names...)
	if err != nil {
		return nil, c.e.wrap("describe topics", err)
	}
	planned := make([]PlannedTopic, 0, len(names))
	for _, n := range names {
		partitions, config := int32(1), controlConfig()
		if n != control {
			partitions, config = o.Topics.layout(prefix, n)
		}
		p := PlannedTopic{Name: n, Partitions: int(partitions), Replication: int(o.Topics.replication()), Config: map[string]string{}}
		if t := found[n]; t != nil {
			p.There, p.Partitions = true, len(t.leaders)
		}
		for k, v := range config {
			p.Config[k] = *v
		}
		planned = append(planned, p)
	}
	return planned, nil
}
