package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// output is the value of the flag -o: one of the formats of a command.
type output struct {
	to      *string
	formats []string
}

// addOutput adds the flag -o. The first format is the default. about follows their list in the
// help.
func addOutput(c *cobra.Command, to *string, formats []string, about string) {
	*to = formats[0]
	c.Flags().VarP(output{to, formats}, "output", "o", "output format: "+strings.Join(formats, ", ")+about)
	setValues(c, "output", formats...)
}

// Set rejects a format that the command does not have.
func (o output) Set(word string) error {
	if !slices.Contains(o.formats, word) {
		return fmt.Errorf("is none of %s", strings.Join(o.formats, ", "))
	}
	*o.to = word
	return nil
}

// String returns the format.
func (o output) String() string {
	if o.to == nil {
		return ""
	}
	return *o.to
}

// Type returns the type that the help shows.
func (o output) Type() string { return "string" }
