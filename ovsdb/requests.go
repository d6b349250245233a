package ovsdb

import (
	"context"
	"encoding/json"
	"fmt"

	"hairpin/ovsdb/jsontext"
)

// Echo sends an echo request to the server.
func (c *Conn) Echo(ctx context.Context) error {
	return c.call(ctx, "echo", []byte("[]"), func(p *jsontext.Parser) error {
		p.Skip()
		return nil
	})
}

// Databases returns the names of the server's databases.
func (c *Conn) Databases(ctx context.Context) (names []string, err error) {
	err = c.call(ctx, "list_dbs", []byte("[]"), func(p *jsontext.Parser) error {
		p.Open('[')
		for p.More(']') {
			names = append(names, p.Text())
		}
		return nil
	})
	return names, err
}

// Schema returns the schema of a database.
func (c *Conn) Schema(ctx context.Context, db string) (*Schema, error) {
	s := new(Schema)
	err := c.call(ctx, "get_schema", jsontext.AppendStrings(nil, []string{db}), func(p *jsontext.Parser) error {
		text := p.Raw()
		if text == nil {
			return nil // the parser has the error
		}
		return json.Unmarshal(text, s)
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Transact executes all operations or none, and returns a result for each. If the server rejects
// it, the error is a [*TransactError]. If the connection is lost or ctx ends, the outcome is
// unknown.
func (c *Conn) Transact(ctx context.Context, db string, ops ...Op) ([]Result, error) {
	return c.transact(ctx, db, ops, func(UUID) string { return "" })
}

func (c *Conn) transact(ctx context.Context, db string, ops []Op, describe func(UUID) string) ([]Result, error) {
	params := jsontext.AppendString([]byte{'['}, db)
	for i, o := range ops {
		var err error
		if params, err = appendOp(append(params, ','), c.rowTypes, o); err != nil {
			return nil, fmt.Errorf("ovsdb: transact %s: operation %d (%s): %w", db, i, o, err)
		}
	}
	var list []reply
	err := c.call(ctx, "transact", append(params, ']'), func(p *jsontext.Parser) error {
		list = readReplies(p)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return results(db, ops, list, describe)
}
