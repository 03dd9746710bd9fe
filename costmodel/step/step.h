#pragma once
#include <cstddef>
#include <vector>

#include "costmodel/step/composition.h"
#include "costmodel/step/prediction.h"
#include "costmodel/step/stage_pieces.h"

namespace foldwise::costmodel {

/// A run's step, composed once. Its prediction, reports, trace and reserved memory are read off it.
struct Step {
  StepContext context;  ///< Refers to model, options and hardware, which must outlive the step.
  ModelKinds kinds;
  StageLayout layout;
  Composition composition;

  [[nodiscard]] const ScheduleShape& shape() const { return composition.times.shape; }
  /// Content of a rank's chunk, indexed as Composition::index.
  [[nodiscard]] const StageContent& content(std::size_t chunk_and_rank) const {
    return layout.stages[stage_of(shape(), layout.stages.size(), chunk_and_rank)];
  }
};

/// The options must satisfy planner/rules; sizes that do not divide are a bug of the caller. Layers are split according
/// to the options' pipeline_layout, or evenly.
[[nodiscard]] Step compose_step(const ModelSpec& model, const TrainingOptions& options, const Hardware& hardware);

/// Parts of predict() at less cost: the step's time, and the memory of every pipeline rank without what torch reserves.
[[nodiscard]] Seconds step_time(const Step& step);
[[nodiscard]] std::vector<StageMemory> step_memory(const Step& step);

/// `with_detail`: also fill StagePrediction::parts, the DetailEntry lines and the step's end.
[[nodiscard]] Prediction predict(const Step& step, bool with_detail = true);

}  // namespace foldwise::costmodel
