package org.apache.iceberg;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;

/** Reads the fields of JSON objects strictly: what is missing, unknown or of a wrong type is a malformed case. */
final class Fields {
  private Fields() {}

  /** Refuses fields that the format does not know, so that a misspelt one is not silently ignored. */
  static void allow(JsonNode object, String what, Set<String> known) {
    if (!object.isObject()) {
      throw new MalformedCase("%s must be an object, not %s", what, object);
    }
    for (Iterator<String> names = object.fieldNames(); names.hasNext(); ) {
      String name = names.next();
      if (!known.contains(name)) {
        throw new MalformedCase("%s knows no field %s; it knows %s", what, name, known);
      }
    }
  }

  static boolean has(JsonNode object, String field) {
    return object.hasNonNull(field);
  }

  static JsonNode required(JsonNode object, String field) {
    if (!has(object, field)) {
      throw new MalformedCase("field %s is missing in %s", field, object);
    }
    return object.get(field);
  }

  static String text(JsonNode object, String field) {
    JsonNode value = required(object, field);
    if (!value.isTextual()) {
      throw new MalformedCase("field %s must be a string, not %s", field, value);
    }
    return value.textValue();
  }

  static String text(JsonNode object, String field, String otherwise) {
    return has(object, field) ? text(object, field) : otherwise;
  }

  static long number(JsonNode object, String field) {
    JsonNode value = required(object, field);
    if (!value.isIntegralNumber() || !value.canConvertToLong()) {
      throw new MalformedCase("field %s must be an integer, not %s", field, value);
    }
    return value.longValue();
  }

  static long number(JsonNode object, String field, long otherwise) {
    return has(object, field) ? number(object, field) : otherwise;
  }

  /** The elements of a list; none if the field is absent or null. */
  static List<JsonNode> list(JsonNode object, String field) {
    List<JsonNode> elements = new ArrayList<>();
    if (has(object, field)) {
      JsonNode value = object.get(field);
      if (!value.isArray()) {
        throw new MalformedCase("field %s must be a list, not %s", field, value);
      }
      value.forEach(elements::add);
    }
    return elements;
  }

  static List<String> texts(JsonNode object, String field) {
    List<String> texts = new ArrayList<>();
    for (JsonNode value : list(object, field)) {
      if (!value.isTextual()) {
        throw new MalformedCase("field %s must hold strings, not %s", field, value);
      }
      texts.add(value.textValue());
    }
    return texts;
  }

  static List<Long> numbers(JsonNode object, String field) {
    List<Long> numbers = new ArrayList<>();
    for (JsonNode value : list(object, field)) {
      if (!value.isIntegralNumber()) {
        throw new MalformedCase("field %s must hold integers, not %s", field, value);
      }
      numbers.add(value.longValue());
    }
    return numbers;
  }
}
