{{- /*
What no schema can tell: values that do not go together, and Secrets that are not there. Included by a template that is
always rendered, so that the first mistake ends the command with one sentence.
*/ -}}

{{- /* Connections that a control plane opens at most: its pool and one for leadership (docs/operations/durable-store.md). */ -}}
{{- define "tidegate.connectionsPerControlPlane" -}}9{{- end }}

{{- define "tidegate.checks" -}}
{{- $v := .Values -}}
{{- if and $v.configuration.document $v.configuration.existingSecret -}}
{{- fail "\n\nconfiguration.document and configuration.existingSecret are both set: which one is meant?\n" -}}
{{- end -}}
{{- if eq $v.mode "embedded" -}}
{{- if not (include "tidegate.isConfigured" .) -}}
{{- fail "\n\nmode: embedded needs a configuration: set configuration.document, or configuration.existingSecret to the name of a Secret that holds tidegate.yaml\n" -}}
{{- end -}}
{{- else -}}
{{- if not (or $v.database.existingSecret $v.database.bundled.enabled) -}}
{{- fail "\n\nno database: set database.existingSecret to the name of a Secret with the URL of a Postgres, or database.bundled.enabled to try Tidegate out\n" -}}
{{- end -}}
{{- if not (or $v.redis.existingSecret $v.redis.bundled.enabled) -}}
{{- fail "\n\nno Redis: set redis.existingSecret to the name of a Secret with the URL of a Redis, or redis.bundled.enabled to try Tidegate out\n" -}}
{{- end -}}
{{- if and (ne $v.redis.mode "single") (not $v.redis.existingSecret) -}}
{{- fail (printf "\n\nredis.mode is %s, but the bundled Redis is a single server: set redis.existingSecret\n" $v.redis.mode) -}}
{{- end -}}
{{- if and $v.tls.clientSecret (not $v.tls.existingSecret) -}}
{{- fail "\n\ntls.clientSecret is set, but not tls.existingSecret: mutual TLS needs a certificate of the control plane, too\n" -}}
{{- end -}}
{{- $each := int (include "tidegate.connectionsPerControlPlane" .) -}}
{{- $room := sub (int $v.database.maxConnections) 3 -}}
{{- $needed := add (mul (int $v.controlPlane.replicas) $each) 1 -}}
{{- if gt $needed $room -}}
{{- fail (printf "\n\n%d control planes open up to %d connections to Postgres (%d each, one for the migration), which has room for %d (database.maxConnections less 3 that Postgres keeps for superusers): raise max_connections of the server and database.maxConnections, or lower controlPlane.replicas\n" (int $v.controlPlane.replicas) $needed $each $room) -}}
{{- end -}}
{{- if and $v.dataPlane.autoscaling.enabled (gt (int $v.dataPlane.autoscaling.minReplicas) (int $v.dataPlane.autoscaling.maxReplicas)) -}}
{{- fail "\n\ndataPlane.autoscaling.minReplicas is above maxReplicas\n" -}}
{{- end -}}
{{- $requests := $v.dataPlane.resources.requests | default dict -}}
{{- if and $v.dataPlane.autoscaling.enabled (not (hasKey $requests "cpu")) -}}
{{- fail "\n\ndataPlane.autoscaling measures CPU as a share of dataPlane.resources.requests.cpu, which is not set\n" -}}
{{- end -}}
{{- if and $v.dataPlane.autoscaling.enabled (gt (int $v.dataPlane.autoscaling.targetMemoryUtilizationPercentage) 0) (not (hasKey $requests "memory")) -}}
{{- fail "\n\ndataPlane.autoscaling measures memory as a share of dataPlane.resources.requests.memory, which is not set\n" -}}
{{- end -}}
{{- end -}}
{{- include "tidegate.checkSecrets" . -}}
{{- end }}

{{- /*
Secrets of yours are looked for where there is a cluster to look in: pods would wait for them without a word. There is
none in `helm template`, and none of the namespace before it exists; every namespace has the ServiceAccount `default`.
*/ -}}
{{- define "tidegate.checkSecrets" -}}
{{- $v := .Values -}}
{{- if lookup "v1" "ServiceAccount" .Release.Namespace "default" -}}
{{- $wanted := list -}}
{{- with $v.secrets.existingSecret -}}
{{- $keys := ternary (list "sealing-key" "admin-token" "data-plane-token") (list "admin-token") (eq $v.mode "fleet") -}}
{{- $wanted = append $wanted (dict "value" "secrets.existingSecret" "name" . "keys" $keys) -}}
{{- end -}}
{{- with $v.configuration.existingSecret -}}
{{- $wanted = append $wanted (dict "value" "configuration.existingSecret" "name" . "keys" (list "tidegate.yaml")) -}}
{{- end -}}
{{- range $v.configuration.environmentSecrets -}}
{{- $wanted = append $wanted (dict "value" "configuration.environmentSecrets" "name" . "keys" list) -}}
{{- end -}}
{{- if eq $v.mode "fleet" -}}
{{- with $v.database.existingSecret -}}
{{- $wanted = append $wanted (dict "value" "database.existingSecret" "name" . "keys" (list $v.database.existingSecretKey)) -}}
{{- end -}}
{{- with $v.redis.existingSecret -}}
{{- $keys := list $v.redis.existingSecretKey -}}
{{- if and (eq $v.redis.mode "sentinel") $v.redis.sentinel.nodeUrlKey -}}
{{- $keys = append $keys $v.redis.sentinel.nodeUrlKey -}}
{{- end -}}
{{- $wanted = append $wanted (dict "value" "redis.existingSecret" "name" . "keys" $keys) -}}
{{- end -}}
{{- with $v.tls.existingSecret -}}
{{- $wanted = append $wanted (dict "value" "tls.existingSecret" "name" . "keys" (list "tls.crt" "tls.key" "ca.crt")) -}}
{{- end -}}
{{- with $v.tls.clientSecret -}}
{{- $wanted = append $wanted (dict "value" "tls.clientSecret" "name" . "keys" (list "tls.crt" "tls.key")) -}}
{{- end -}}
{{- end -}}
{{- range $wanted -}}
{{- $found := lookup "v1" "Secret" $.Release.Namespace .name -}}
{{- if not $found -}}
{{- fail (printf "\n\n%s names the Secret %q, which is not in the namespace %q%s\n" .value .name $.Release.Namespace (ternary (printf "; it must hold %s" (join ", " .keys)) "" (gt (len .keys) 0))) -}}
{{- end -}}
{{- range $key := .keys -}}
{{- if not (hasKey ($found.data | default dict) $key) -}}
{{- fail (printf "\n\nthe Secret %q (%s) has no key %q\n" $found.metadata.name $.Release.Namespace $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
