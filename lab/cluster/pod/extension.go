package main

import (
	"encoding/json"
	"net/http"
	"strings"
)

// extension returns a handler that extends an API server. It serves a validating webhook that
// denies every object with the server's name, and an aggregated API, group seen.hairpin. That has
// one resource, whose only object has the server's name.
func extension(name string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /validate", func(w http.ResponseWriter, r *http.Request) {
		var review struct {
			Request struct {
				UID string `json:"uid"`
			} `json:"request"`
		}
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer(w, object{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": object{
			"uid": review.Request.UID, "allowed": false, "status": object{"message": "denied by " + name},
		}})
	})
	mux.HandleFunc("GET /apis/seen.hairpin/{version}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, object{"apiVersion": "v1", "kind": "APIResourceList", "groupVersion": "seen.hairpin/" +
			r.PathValue("version"),
			"resources": []object{{"name": "servers", "singularName": "server", "kind": "Server", "namespaced": false,
				"verbs": []string{"list"}}}})
	})
	mux.HandleFunc("GET /apis/seen.hairpin/{version}/servers", func(w http.ResponseWriter, r *http.Request) {
		group := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/apis/"), "/servers")
		answer(w, object{"apiVersion": group, "kind": "ServerList", "metadata": object{},
			"items": []object{{"apiVersion": group, "kind": "Server", "metadata": object{"name": name}}}})
	})
	return mux
}

type object = map[string]any

func answer(w http.ResponseWriter, o object) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(o) // the client may have gone
}
