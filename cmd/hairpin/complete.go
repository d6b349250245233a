package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hairpin/cluster"
	"hairpin/inspect"
	"hairpin/ui"
)

// completionTimeout limits how long a shell waits for the names of a cluster.
const completionTimeout = 3 * time.Second

// clusterNames completes a word with names from the cluster that the command reads. words returns
// the candidates, for the arguments before the word. Without a cluster, there are none.
func clusterNames(s *settings, o *ui.ExplainOptions,
	words func(all *cluster.Snapshot, args []string) []string) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		conf, err := s.load(c)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		from := *o
		from.EveryNode = o.EveryNode || impliesAll(c)
		ctx, stop := context.WithTimeout(context.WithoutCancel(contextOf(c)), completionTimeout)
		defer stop()
		all, err := ui.Cluster(ctx, from, conf)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var fit []string
		directive := cobra.ShellCompDirectiveNoFileComp
		for _, w := range words(all, args) {
			if strings.HasPrefix(w, word) {
				fit = append(fit, w)
			}
			if strings.HasSuffix(w, ":") { // a port follows
				directive |= cobra.ShellCompDirectiveNoSpace
			}
		}
		return fit, directive
	}
}

// fromAPI is clusterNames for a command that always uses the API.
func (s *settings) fromAPI(words func(all *cluster.Snapshot, args []string) []string) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		o := ui.ExplainOptions{EveryNode: true}
		if f := c.Flags().Lookup("context"); f != nil {
			o.Context = f.Value.String()
		}
		return clusterNames(s, &o, words)(c, args, word)
	}
}

// addContext adds the flag --context. The command finds a kubeconfig as kubectl does.
func (s *settings) addContext(c *cobra.Command, to *string) {
	c.Flags().Lookup("kubeconfig").Usage =
		"kubeconfig file; empty = $KUBECONFIG, ~/.kube/config, or in a pod its service account"
	c.Flags().StringVar(to, "context", "", "context in the kubeconfig; empty = the current context")
	setCompletion(c, "context", func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		conf, err := s.load(c)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return inspect.Contexts(conf.Process.Kubeconfig), cobra.ShellCompDirectiveNoFileComp
	})
}

// addNamespace adds the flag --namespace for the agents' pods.
func (s *settings) addNamespace(c *cobra.Command, to *string) {
	c.Flags().StringVarP(to, "namespace", "n", inspect.DefaultNamespace, "namespace of the agents' pods")
	setCompletion(c, "namespace", s.fromAPI(namespaces))
}

// addNodes adds the flag --nodes. Its value may have several names, of which the last is completed.
func (s *settings) addNodes(c *cobra.Command, to *[]string, usage string) {
	c.Flags().StringSliceVar(to, "nodes", nil, usage)
	setCompletion(c, "nodes", commaSeparated(s.fromAPI(nodeNames)))
}

// commaSeparated completes the last word of a list.
func commaSeparated(last cobra.CompletionFunc) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		before := word[:strings.LastIndex(word, ",")+1]
		words, directive := last(c, args, word[len(before):])
		var lists []string
		for _, w := range words {
			lists = append(lists, before+w)
		}
		return lists, directive
	}
}

func contextOf(c *cobra.Command) context.Context {
	if ctx := c.Context(); ctx != nil {
		return ctx
	}
	return context.Background()
}

func nodeNames(all *cluster.Snapshot, _ []string) (names []string) {
	for _, n := range all.Nodes {
		names = append(names, n.Name)
	}
	return names
}

// podNames are the candidates for [NAMESPACE/]POD.
func podNames(all *cluster.Snapshot, args []string) (names []string) {
	for _, p := range all.Pods {
		if len(args) == 0 {
			names = append(names, p.Owner.Namespace+"/"+p.Owner.Name)
		}
	}
	return names
}

func namespaces(all *cluster.Snapshot, _ []string) (names []string) {
	for _, n := range all.Namespaces {
		names = append(names, n.Name)
	}
	return names
}

// endpointNames are the candidates for --endpoint: those of the Service TO.
func endpointNames(all *cluster.Snapshot, args []string) (names []string) {
	if len(args) != 2 { // FROM and TO
		return nil
	}
	to, _, _ := strings.Cut(strings.TrimPrefix(args[1], "svc/"), ":")
	seen := map[string]bool{}
	for _, f := range all.Frontends {
		if f.Owner.Namespace+"/"+f.Owner.Name != to {
			continue
		}
		for _, b := range f.Backends {
			if a := b.Addr.String(); !seen[a] {
				seen[a] = true
				names = append(names, a)
			}
		}
	}
	return names
}

// setCompletion sets the candidates for the value of a flag.
func setCompletion(c *cobra.Command, flag string, with cobra.CompletionFunc) {
	if err := c.RegisterFlagCompletionFunc(flag, with); err != nil {
		panic(err) // the command has no such flag
	}
}

// setValues sets fixed candidates for the value of a flag.
func setValues(c *cobra.Command, flag string, words ...string) {
	setCompletion(c, flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}
