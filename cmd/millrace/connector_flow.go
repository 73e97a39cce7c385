package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/airbyte"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/web"
)

func (a *app) connectorFlow() *cobra.Command {
	return &cobra.Command{
		Use:   "flow",
		Short: "Speak Estuary's capture protocol on stdin and stdout",
		Long: `Flow answers the requests that come on stdin: spec, discover, validate, apply and open. After
open it captures until stdin ends. The codec is that of FLOW_RUNTIME_CODEC: proto (the
default) or json. Logs go to stderr.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := withSignals(c.Context())
			defer stop()
			log, err := a.logger(web.NewJournal())
			if err != nil {
				return err
			}
			codec, err := airbyte.NewFlowCodec(os.Stdin, os.Getenv("FLOW_RUNTIME_CODEC"))
			if err != nil {
				return err
			}
			f := &flow{codec: codec, out: airbyte.NewWriter(a.stdout), log: log}
			if err := f.serve(ctx); err != nil && !interrupted(ctx) {
				return &exit{exitFailed, err}
			}
			return nil
		},
	}
}

// flow is one process that speaks Estuary's protocol.
type flow struct {
	codec *airbyte.FlowCodec
	out   *airbyte.Writer
	log   *slog.Logger
}

// serve answers requests until stdin ends, or ctx: then a read of stdin is left
// alone, which nothing can end.
func (f *flow) serve(ctx context.Context) error {
	type result struct {
		request *airbyte.FlowRequest
		err     error
	}
	for {
		read := make(chan result, 1)
		go func() {
			request, err := f.codec.Read()
			read <- result{request, err}
		}()
		var request *airbyte.FlowRequest
		var err error
		select {
		case r := <-read:
			request, err = r.request, r.err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if request.Open != nil {
			return f.open(ctx, request.Open)
		}
		response, err := f.answer(ctx, request)
		if err == nil {
			err = f.send(response)
		}
		if err != nil {
			return err
		}
	}
}

func (f *flow) send(r *airbyte.FlowResponse) error {
	line, err := f.codec.Append(nil, r)
	if err == nil {
		err = f.out.Lines(line)
	}
	if err == nil {
		err = f.out.Flush()
	}
	return err
}

func (f *flow) answer(ctx context.Context, r *airbyte.FlowRequest) (*airbyte.FlowResponse, error) {
	switch {
	case r.Spec != nil:
		return airbyte.FlowSpecOf()
	case r.Apply != nil:
		return &airbyte.FlowResponse{Applied: &airbyte.FlowApplied{}}, nil // nothing to be made
	case r.Discover != nil:
		return f.discover(ctx, r.Discover)
	case r.Validate != nil:
		return f.validate(ctx, r.Validate)
	}
	return nil, &millrace.Error{Kind: millrace.KindConfig, Op: "flow", Err: errors.New("a request that is none of spec, discover, validate, apply and open"),
		Hint: "acknowledge comes after open; FLOW_RUNTIME_CODEC must be what the runtime speaks"}
}

func (f *flow) discover(ctx context.Context, d *airbyte.FlowDiscover) (*airbyte.FlowResponse, error) {
	k, err := newConnector(d.Config, f.out, f.log)
	if err != nil {
		return nil, err
	}
	found, err := k.look(ctx)
	if err != nil {
		return nil, err
	}
	if found.Server == nil {
		return nil, problemsOf(found.Report)
	}
	discovered := &airbyte.FlowDiscovered{Bindings: []airbyte.FlowFound{}}
	for _, t := range found.Tables {
		one, err := k.cfg.FlowFoundOf(t)
		if err != nil {
			return nil, err
		}
		discovered.Bindings = append(discovered.Bindings, *one)
	}
	return &airbyte.FlowResponse{Discovered: discovered}, nil
}

// validate finds what stands in the way of capturing the bindings.
func (f *flow) validate(ctx context.Context, v *airbyte.FlowValidate) (*airbyte.FlowResponse, error) {
	k, err := newConnector(v.Config, f.out, f.log)
	if err != nil {
		return nil, err
	}
	found, err := k.look(ctx)
	if err != nil {
		return nil, err
	}
	errs := []error{problemsOf(found.Report)}
	validated := &airbyte.FlowValidated{Bindings: []airbyte.FlowPath{}}
	for i := range v.Bindings {
		r, err := v.Bindings[i].Resolve()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		name := r.Table()
		if at := slices.IndexFunc(found.Tables, func(t *catalog.Table) bool { return t.Name == name }); at >= 0 {
			_, err = k.cfg.FlowKeyOf(found.Tables[at], r.PrimaryKey)
		} else {
			err = &millrace.Error{Kind: millrace.KindConfig, Op: fmt.Sprintf("binding %d", i+1), Table: name, Err: errors.New("is not there, or not selected"),
				Hint: "discover lists what can be captured"}
		}
		errs = append(errs, err)
		validated.Bindings = append(validated.Bindings, airbyte.FlowPath{ResourcePath: []string{name.Schema, name.Name}})
	}
	return &airbyte.FlowResponse{Validated: validated}, errors.Join(errs...)
}

// open captures until stdin ends.
func (f *flow) open(ctx context.Context, o *airbyte.FlowOpen) error {
	k, err := newConnector(o.Capture.Config, f.out, f.log)
	if err != nil {
		return err
	}
	k.cfg.Mode = airbyte.ModeContinuous
	r := newReading(k)
	r.flow = f.codec
	if r.catalog, r.state, err = airbyte.FlowStreams(o); err != nil {
		return err
	}
	if err := f.send(&airbyte.FlowResponse{Opened: &airbyte.FlowOpened{Explicit: true}}); err != nil {
		return err
	}
	return r.run(ctx)
}

// acknowledgeFlow reads acknowledgements until stdin ends, which ends the capture.
func acknowledgeFlow(codec *airbyte.FlowCodec, sink *airbyte.Sink, gate *airbyte.Gate, stop func()) error {
	acknowledged := int64(0)
	for {
		request, err := codec.Read()
		switch {
		case errors.Is(err, io.EOF):
			stop()
			return nil
		case err != nil:
			return err
		case request.Ack == nil:
			return &millrace.Error{Kind: millrace.KindConfig, Op: "flow", Err: errors.New("a request after open that is no acknowledge"), Hint: "start another process for it"}
		}
		acknowledged += max(1, int64(request.Ack.Checkpoints))
		if err := prove(sink, gate, acknowledged); err != nil {
			return err
		}
	}
}
