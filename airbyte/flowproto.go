package airbyte

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// eachField calls give with every field of a message: v is the contents of a
// string, bytes or message, n the value of a number.
func eachField(b []byte, give func(num protowire.Number, v []byte, n uint64) error) error {
	for len(b) > 0 {
		num, typ, used := protowire.ConsumeTag(b)
		if used < 0 {
			return fmt.Errorf("%w: %w", errRequest, protowire.ParseError(used))
		}
		b = b[used:]
		var v []byte
		var n uint64
		switch typ {
		case protowire.BytesType:
			v, used = protowire.ConsumeBytes(b)
		case protowire.VarintType:
			n, used = protowire.ConsumeVarint(b)
		default:
			used = protowire.ConsumeFieldValue(num, typ, b)
		}
		if used < 0 {
			return fmt.Errorf("%w: %w", errRequest, protowire.ParseError(used))
		}
		b = b[used:]
		if err := give(num, v, n); err != nil {
			return err
		}
	}
	return nil
}

// parseFlowRequest reads capture.Request.
func parseFlowRequest(body []byte) (*FlowRequest, error) {
	r := &FlowRequest{}
	err := eachField(body, func(num protowire.Number, v []byte, _ uint64) error {
		switch num {
		case 1:
			r.Spec = &struct{}{}
		case 2:
			r.Discover = &FlowDiscover{}
			return eachField(v, func(num protowire.Number, v []byte, _ uint64) error {
				if num == 2 {
					r.Discover.Config = v
				}
				return nil
			})
		case 3:
			r.Validate = &FlowValidate{}
			return eachField(v, func(num protowire.Number, v []byte, _ uint64) error {
				switch num {
				case 3:
					r.Validate.Config = v
				case 4:
					return parseFlowBinding(v, &r.Validate.Bindings, false)
				}
				return nil
			})
		case 4:
			r.Apply = &struct{}{}
		case 5:
			r.Open = &FlowOpen{}
			return r.Open.parse(v)
		case 6:
			r.Ack = &FlowAck{}
			return eachField(v, func(num protowire.Number, _ []byte, n uint64) error {
				if num == 1 {
					r.Ack.Checkpoints = uint32(n)
				}
				return nil
			})
		}
		return nil
	})
	return r, err
}

// parse reads capture.Request.Open.
func (o *FlowOpen) parse(b []byte) error {
	return eachField(b, func(num protowire.Number, v []byte, _ uint64) error {
		switch num {
		case 1: // flow.CaptureSpec
			return eachField(v, func(num protowire.Number, v []byte, _ uint64) error {
				switch num {
				case 3:
					o.Capture.Config = v
				case 4:
					return parseFlowBinding(v, &o.Capture.Bindings, true)
				}
				return nil
			})
		case 4:
			o.State = v
		}
		return nil
	})
}

// parseFlowBinding reads a binding of a flow.CaptureSpec, or of a
// capture.Request.Validate, which has no path and no key of the state.
func parseFlowBinding(b []byte, to *[]FlowBinding, ofSpec bool) error {
	var f FlowBinding
	err := eachField(b, func(num protowire.Number, v []byte, _ uint64) error {
		switch {
		case num == 1:
			f.Resource = v
		case num == 2 && ofSpec:
			f.ResourcePath = append(f.ResourcePath, string(v))
		case num == 5 && ofSpec:
			f.StateKey = string(v)
		}
		return nil
	})
	*to = append(*to, f)
	return err
}

// message builds a protobuf message.
type message []byte

func (m *message) bytes(num protowire.Number, v []byte) {
	if len(v) > 0 {
		*m = protowire.AppendBytes(protowire.AppendTag(*m, num, protowire.BytesType), v)
	}
}

func (m *message) strings(num protowire.Number, values ...string) {
	for _, v := range values {
		*m = protowire.AppendString(protowire.AppendTag(*m, num, protowire.BytesType), v)
	}
}

func (m *message) number(num protowire.Number, n uint64) {
	if n != 0 {
		*m = protowire.AppendVarint(protowire.AppendTag(*m, num, protowire.VarintType), n)
	}
}

// embed puts a message in, also an empty one.
func (m *message) embed(num protowire.Number, of message) {
	*m = protowire.AppendBytes(protowire.AppendTag(*m, num, protowire.BytesType), of)
}

// proto gives capture.Response.
func (r *FlowResponse) proto() []byte {
	var m, in message
	switch {
	case r.Spec != nil:
		in.number(1, uint64(r.Spec.Protocol))
		in.bytes(2, r.Spec.ConfigSchema)
		in.bytes(3, r.Spec.ResourceSchema)
		in.bytes(4, []byte(r.Spec.Documentation))
		in.strings(6, r.Spec.PathPointers...)
		m.embed(1, in)
	case r.Discovered != nil:
		for i := range r.Discovered.Bindings {
			f := &r.Discovered.Bindings[i]
			var one message
			one.bytes(1, []byte(f.Name))
			one.bytes(2, f.Resource)
			one.bytes(3, f.Schema)
			one.strings(4, f.Key...)
			one.strings(6, f.ResourcePath...)
			in.embed(1, one)
		}
		m.embed(2, in)
	case r.Validated != nil:
		for _, p := range r.Validated.Bindings {
			var one message
			one.strings(1, p.ResourcePath...)
			in.embed(1, one)
		}
		m.embed(3, in)
	case r.Applied != nil:
		in.bytes(1, []byte(r.Applied.Action))
		m.embed(4, in)
	case r.Opened != nil:
		if r.Opened.Explicit {
			in.number(1, 1)
		}
		m.embed(5, in)
	case r.Schema != nil:
		in.number(1, uint64(r.Schema.Binding))
		in.bytes(2, r.Schema.Schema)
		m.embed(8, in)
	case r.Checkpoint != nil:
		var state message
		state.bytes(1, r.Checkpoint.State.Updated)
		if r.Checkpoint.State.Patch {
			state.number(2, 1)
		}
		in.embed(1, state)
		m.embed(7, in)
	}
	return m
}
