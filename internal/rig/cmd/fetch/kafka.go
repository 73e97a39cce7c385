package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/millrace/millrace/internal/rig/kafkaserver"
)

// fetchKafka has Maven copy the broker's jars.
func fetchKafka(ctx context.Context) error {
	fmt.Printf("fetching Kafka %s\n", kafkaserver.Version)
	if err := os.RemoveAll(kafkaserver.LibDir()); err != nil { // incomplete, or Have would have found it
		return err
	}
	if err := kafkaserver.FetchJars(ctx, kafkaserver.LibDir(), kafkaserver.Artifacts...); err != nil {
		return err
	}
	if !kafkaserver.Have() {
		return errors.New("the jars are not what was expected")
	}
	return nil
}
